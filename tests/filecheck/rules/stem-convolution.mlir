// The kernel gets a row and a column of zeros in front, so that its taps pair up as the blocks do.
func.func public @stem(%x: tensor<2x8x10x3xf32>, %k: tensor<7x7x3x4xf32>) -> tensor<2x4x5x4xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[3, 3], [3, 3]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x10x3xf32>, tensor<7x7x3x4xf32>) -> tensor<2x4x5x4xf32>
  return %0 : tensor<2x4x5x4xf32>
}
// CHECK: @stem
// CHECK: stablehlo.pad %arg1, {{.*}}, low = [1, 1, 0, 0], high = [0, 0, 0, 0]
// CHECK: stablehlo.convolution({{.*}} pad = {{.*}} : (tensor<2x4x5x12xf32>, tensor<4x4x12x4xf32>) -> tensor<2x4x5x4xf32>
