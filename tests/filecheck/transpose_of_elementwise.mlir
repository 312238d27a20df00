// PASSES: canonicalize,transpose-of-elementwise,dead-code

// Two transposes become one: the broadcast of a scalar and the constant follow at no cost.
func.func public @sunk(%x: tensor<4x5x6xf32>, %w: tensor<4x5x6xf32>, %s: tensor<f32>) -> tensor<6x4x5xf32> {
  %a = stablehlo.transpose %x, dims = [2, 0, 1] : (tensor<4x5x6xf32>) -> tensor<6x4x5xf32>
  %b = stablehlo.transpose %w, dims = [2, 0, 1] : (tensor<4x5x6xf32>) -> tensor<6x4x5xf32>
  %c = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<6x4x5xf32>
  %k = stablehlo.constant dense<2.0> : tensor<6x4x5xf32>
  %d = stablehlo.multiply %a, %c : tensor<6x4x5xf32>
  %e = stablehlo.add %d, %b : tensor<6x4x5xf32>
  %f = stablehlo.maximum %e, %k : tensor<6x4x5xf32>
  return %f : tensor<6x4x5xf32>
}
// CHECK: @sunk
// CHECK: stablehlo.multiply %arg0, {{.*}} : tensor<4x5x6xf32>
// CHECK: %[[F:.*]] = stablehlo.maximum {{.*}} : tensor<4x5x6xf32>
// CHECK: %[[T:.*]] = stablehlo.transpose %[[F]], dims = [2, 0, 1] : (tensor<4x5x6xf32>) -> tensor<6x4x5xf32>
// CHECK: return %[[T]]

// A transpose and its inverse cancel; only the small operand of the broadcast is transposed.
func.func public @cancelled(%x: tensor<4x5x6xf32>, %y: tensor<6x4xf32>) -> tensor<4x5x6xf32> {
  %a = stablehlo.transpose %x, dims = [2, 0, 1] : (tensor<4x5x6xf32>) -> tensor<6x4x5xf32>
  %b = stablehlo.broadcast_in_dim %y, dims = [0, 1] : (tensor<6x4xf32>) -> tensor<6x4x5xf32>
  %c = stablehlo.subtract %a, %b : tensor<6x4x5xf32>
  %d = stablehlo.transpose %c, dims = [1, 2, 0] : (tensor<6x4x5xf32>) -> tensor<4x5x6xf32>
  return %d : tensor<4x5x6xf32>
}
// CHECK: @cancelled
// CHECK: %[[Y:.*]] = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<6x4xf32>) -> tensor<4x6xf32>
// CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %[[Y]], dims = [0, 2] : (tensor<4x6xf32>) -> tensor<4x5x6xf32>
// CHECK: %[[C:.*]] = stablehlo.subtract %arg0, %[[B]]
// CHECK: return %[[C]]

// Another leaf of the transposed shape: nothing would be won.
func.func public @another_leaf(%x: tensor<4x5xf32>, %w: tensor<5x4xf32>) -> tensor<5x4xf32> {
  %a = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x5xf32>) -> tensor<5x4xf32>
  %b = stablehlo.add %a, %w : tensor<5x4xf32>
  return %b : tensor<5x4xf32>
}
// CHECK: @another_leaf
// CHECK: %[[A:.*]] = stablehlo.transpose %arg0
// CHECK: stablehlo.add %[[A]], %arg1
