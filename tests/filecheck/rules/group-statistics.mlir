// Shares of a group's sum: [4, 6] -> [4, 2, 3] and back is gone; sums and their spreading are products.
func.func public @shares(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reshape %x : (tensor<4x6xf32>) -> tensor<4x2x3xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<4x2x3xf32>, tensor<f32>) -> tensor<4x2xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<4x2xf32>) -> tensor<4x2x3xf32>
  %3 = stablehlo.divide %0, %2 : tensor<4x2x3xf32>
  %4 = stablehlo.reshape %3 : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
  return %4 : tensor<4x6xf32>
}
// CHECK: @shares
// CHECK: %[[S:.*]] = stablehlo.dot_general %arg0, %{{.*}}, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x6xf32>, tensor<6x2xf32>) -> tensor<4x2xf32>
// CHECK: %[[W:.*]] = stablehlo.dot_general %[[S]], %{{.*}}, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x2xf32>, tensor<2x6xf32>) -> tensor<4x6xf32>
// CHECK: stablehlo.divide %arg0, %[[W]] : tensor<4x6xf32>
