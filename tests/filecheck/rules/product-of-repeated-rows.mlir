// Multiplied once, then repeated.
func.func public @rows(%x: tensor<2x3x4xf32>, %w: tensor<4x5xf32>) -> tensor<2x6x5xf32> {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1, 3] : (tensor<2x3x4xf32>) -> tensor<2x3x2x4xf32>
  %1 = stablehlo.reshape %0 : (tensor<2x3x2x4xf32>) -> tensor<2x6x4xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [2] x [0] : (tensor<2x6x4xf32>, tensor<4x5xf32>) -> tensor<2x6x5xf32>
  return %2 : tensor<2x6x5xf32>
}
// CHECK: @rows
// CHECK: %[[P:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK: %[[S:.*]] = stablehlo.broadcast_in_dim %[[P]], dims = [0, 1, 3]
// CHECK: stablehlo.reshape %[[S]] : (tensor<2x3x2x5xf32>) -> tensor<2x6x5xf32>
