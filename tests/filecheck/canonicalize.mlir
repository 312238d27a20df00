// PASSES: canonicalize,dead-code

func.func public @reshapes(%x: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<48xf32>) {
  %a = stablehlo.reshape %x : (tensor<8x6xf32>) -> tensor<8x2x3xf32>
  %b = stablehlo.reshape %a : (tensor<8x2x3xf32>) -> tensor<8x6xf32>
  %c = stablehlo.reshape %a : (tensor<8x2x3xf32>) -> tensor<48xf32>
  return %b, %c : tensor<8x6xf32>, tensor<48xf32>
}
// CHECK: @reshapes
// CHECK: %[[C:.*]] = stablehlo.reshape %arg0 : (tensor<8x6xf32>) -> tensor<48xf32>
// CHECK: return %arg0, %[[C]]

func.func public @transposes(%x: tensor<2x3x1xf32>) -> (tensor<2x3x1xf32>, tensor<2x1x3xf32>) {
  %a = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<2x3x1xf32>) -> tensor<3x2x1xf32>
  %b = stablehlo.transpose %a, dims = [1, 0, 2] : (tensor<3x2x1xf32>) -> tensor<2x3x1xf32>
  %c = stablehlo.transpose %x, dims = [0, 2, 1] : (tensor<2x3x1xf32>) -> tensor<2x1x3xf32>
  return %b, %c : tensor<2x3x1xf32>, tensor<2x1x3xf32>
}
// CHECK: @transposes
// CHECK: %[[C:.*]] = stablehlo.reshape %arg0 : (tensor<2x3x1xf32>) -> tensor<2x1x3xf32>
// CHECK: return %arg0, %[[C]]

func.func public @broadcasts(%x: tensor<8x2xf32>) -> (tensor<8x5x2xf32>, tensor<1x8x2xf32>) {
  %a = stablehlo.broadcast_in_dim %x, dims = [0, 2] : (tensor<8x2xf32>) -> tensor<8x1x2xf32>
  %b = stablehlo.broadcast_in_dim %a, dims = [0, 1, 2] : (tensor<8x1x2xf32>) -> tensor<8x5x2xf32>
  %c = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<8x2xf32>) -> tensor<1x8x2xf32>
  return %b, %c : tensor<8x5x2xf32>, tensor<1x8x2xf32>
}
// CHECK: @broadcasts
// CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %arg0, dims = [0, 2] : (tensor<8x2xf32>) -> tensor<8x5x2xf32>
// CHECK: %[[C:.*]] = stablehlo.reshape %arg0 : (tensor<8x2xf32>) -> tensor<1x8x2xf32>
// CHECK: return %[[B]], %[[C]]

// What only spreads or stands in the text is never transposed whole.
func.func public @transposed_leaves(%y: tensor<3xf32>) -> (tensor<4x2x3xf32>, tensor<3x2xi32>) {
  %b = stablehlo.broadcast_in_dim %y, dims = [1] : (tensor<3xf32>) -> tensor<2x3x4xf32>
  %t = stablehlo.transpose %b, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  %k = stablehlo.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>
  %u = stablehlo.transpose %k, dims = [1, 0] : (tensor<2x3xi32>) -> tensor<3x2xi32>
  return %t, %u : tensor<4x2x3xf32>, tensor<3x2xi32>
}
// CHECK: @transposed_leaves
// CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %arg0, dims = [2] : (tensor<3xf32>) -> tensor<4x2x3xf32>
// CHECK: %[[K:.*]] = stablehlo.constant dense<{{.*}}1, 4], [2, 5], [3, 6]]> : tensor<3x2xi32>
// CHECK: return %[[B]], %[[K]]
