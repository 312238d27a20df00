// A product of matrices, in full precision as the multiplications were.
func.func public @outer(%x: tensor<3x4xf32>, %y: tensor<4x5xf32>) -> tensor<3x5xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1] : (tensor<3x4xf32>) -> tensor<3x4x5xf32>
  %1 = stablehlo.broadcast_in_dim %y, dims = [1, 2] : (tensor<4x5xf32>) -> tensor<3x4x5xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<3x4x5xf32>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x4x5xf32>, tensor<f32>) -> tensor<3x5xf32>
  return %3 : tensor<3x5xf32>
}
// CHECK: @outer
// CHECK: stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST]
// CHECK-NOT: reduce
