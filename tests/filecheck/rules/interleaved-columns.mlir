// The columns are taken from the weights and the bias; the whole product is gone.
func.func public @gate(%x: tensor<3x4xf32>, %w: tensor<4x4xf32>, %b: tensor<4xf32>) -> tensor<3x2xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  %1 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
  %2 = stablehlo.add %0, %1 : tensor<3x4xf32>
  %3 = stablehlo.slice %2 [0:3, 0:4:2] : (tensor<3x4xf32>) -> tensor<3x2xf32>
  %4 = stablehlo.slice %2 [0:3, 1:4:2] : (tensor<3x4xf32>) -> tensor<3x2xf32>
  %5 = stablehlo.multiply %3, %4 : tensor<3x2xf32>
  return %5 : tensor<3x2xf32>
}
// CHECK: @gate
// CHECK: %[[E:.*]] = stablehlo.slice %arg1 [0:4, 0:4:2]
// CHECK: stablehlo.dot_general %arg0, %[[E]]
// CHECK: %[[O:.*]] = stablehlo.slice %arg1 [0:4, 1:4:2]
// CHECK: stablehlo.dot_general %arg0, %[[O]]
