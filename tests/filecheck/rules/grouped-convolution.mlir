// Two groups of two channels: one kernel [3, 4, 4] with zeros outside the blocks, and no groups.
func.func public @convolve(%x: tensor<1x8x4xf32>, %k: tensor<3x2x4xf32>) -> tensor<1x6x4xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<1x8x4xf32>, tensor<3x2x4xf32>) -> tensor<1x6x4xf32>
  return %0 : tensor<1x6x4xf32>
}
// CHECK: @convolve
// CHECK: stablehlo.select %{{.*}}, %{{.*}}, %{{.*}} : tensor<3x4x4xi1>, tensor<3x4x4xf32>
// CHECK: stablehlo.convolution(%arg0, %{{.*}}) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [1], pad = [[0, 0]], lhs_dilate = [1], rhs_dilate = [1], reverse = [false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64
