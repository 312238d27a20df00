// Softmax of the scores, then the product with the values: the sums of the rows are the product's last column.
func.func public @attend(%s: tensor<2x3x4xf32>, %v: tensor<2x4x5xf32>) -> tensor<2x3x5xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<2x3xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3x4xf32>
  %2 = stablehlo.subtract %s, %1 : tensor<2x3x4xf32>
  %3 = stablehlo.exponential %2 : tensor<2x3x4xf32>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<2x3xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3x4xf32>
  %6 = stablehlo.divide %3, %5 : tensor<2x3x4xf32>
  %7 = stablehlo.dot_general %6, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
  return %7 : tensor<2x3x5xf32>
}
// CHECK: @attend
// CHECK: %[[E:.*]] = stablehlo.exponential
// CHECK: %[[V:.*]] = stablehlo.concatenate %arg1, %{{.*}}, dim = 2 : (tensor<2x4x5xf32>, tensor<2x4x1xf32>) -> tensor<2x4x6xf32>
// CHECK: stablehlo.dot_general %[[E]], %[[V]], batching_dims = [0] x [0], contracting_dims = [2] x [1]
// CHECK: stablehlo.divide %{{.*}}, %{{.*}} : tensor<2x3x5xf32>
