// Blocks of 4 columns divided by their maximum: a window, and the maxima spread by a product with a 0/1 matrix.
func.func public @blocks(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %0 = stablehlo.reshape %x : (tensor<3x8xf32>) -> tensor<3x2x4xf32>
  %1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.maximum across dimensions = [2] : (tensor<3x2x4xf32>, tensor<f32>) -> tensor<3x2xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<3x2xf32>) -> tensor<3x2x4xf32>
  %4 = stablehlo.divide %0, %3 : tensor<3x2x4xf32>
  %5 = stablehlo.reshape %4 : (tensor<3x2x4xf32>) -> tensor<3x8xf32>
  return %5 : tensor<3x8xf32>
}
// CHECK: @blocks
// CHECK: %[[M:.*]] = "stablehlo.reduce_window"(%arg0
// CHECK: %[[S:.*]] = stablehlo.dot_general %[[M]], %{{.*}}, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST]
// CHECK: stablehlo.divide %arg0, %[[S]]
