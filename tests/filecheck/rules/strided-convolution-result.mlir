// The stride goes into the window.
func.func public @stride(%x: tensor<2x4x5x3xf32>, %k: tensor<3x3x3x4xf32>) -> tensor<2x2x3x4xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x4x5x3xf32>, tensor<3x3x3x4xf32>) -> tensor<2x4x5x4xf32>
  %1 = stablehlo.slice %0 [0:2, 0:4:2, 0:5:2, 0:4] : (tensor<2x4x5x4xf32>) -> tensor<2x2x3x4xf32>
  return %1 : tensor<2x2x3x4xf32>
}
// CHECK: @stride
// CHECK: stablehlo.convolution(%arg0, %arg1) {{.*}} window = {stride = [2, 2]
// CHECK-NOT: slice
