// A channel's share of its group over all positions: positions are summed up first, [2, 4, 6] -> [2, 6] -> [2, 2].
func.func public @shares(%x: tensor<2x4x6xf32>) -> tensor<2x4x6xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reshape %x : (tensor<2x4x6xf32>) -> tensor<2x4x2x3xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1, 3] : (tensor<2x4x2x3xf32>, tensor<f32>) -> tensor<2x2xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0, 2] : (tensor<2x2xf32>) -> tensor<2x4x2x3xf32>
  %3 = stablehlo.divide %0, %2 : tensor<2x4x2x3xf32>
  %4 = stablehlo.reshape %3 : (tensor<2x4x2x3xf32>) -> tensor<2x4x6xf32>
  return %4 : tensor<2x4x6xf32>
}
// CHECK: @shares
// CHECK: stablehlo.reduce(%arg0 init: %{{.*}}) applies stablehlo.add across dimensions = [1] : (tensor<2x4x6xf32>, tensor<f32>) -> tensor<2x6xf32>
// CHECK: stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [2] : (tensor<2x2x3xf32>, tensor<f32>) -> tensor<2x2xf32>
// CHECK: stablehlo.divide %arg0, %{{.*}} : tensor<2x4x6xf32>
