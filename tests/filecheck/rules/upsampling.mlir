// Every pixel written to a window of 2 x 3: a transposed convolution of each channel with ones.
func.func public @larger(%x: tensor<5x4x7x6xf32>) -> tensor<5x8x21x6xf32> {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1, 3, 5] : (tensor<5x4x7x6xf32>) -> tensor<5x4x2x7x3x6xf32>
  %1 = stablehlo.reshape %0 : (tensor<5x4x2x7x3x6xf32>) -> tensor<5x8x21x6xf32>
  return %1 : tensor<5x8x21x6xf32>
}
// CHECK: @larger
// CHECK-NOT: stablehlo.reshape
// CHECK: stablehlo.convolution(%arg0, %{{.*}}) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]
// CHECK-SAME: lhs_dilate = [2, 3]
// CHECK-SAME: feature_group_count = 6
