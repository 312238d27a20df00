// Windows of 2 x 2 pixels from 4 x 3 channels, as PyTorch orders them: a transposed convolution with a 0/1 kernel.
func.func public @larger(%x: tensor<7x5x6x12xf32>) -> tensor<7x10x12x3xf32> {
  %0 = stablehlo.reshape %x : (tensor<7x5x6x12xf32>) -> tensor<7x5x6x3x2x2xf32>
  %1 = stablehlo.transpose %0, dims = [0, 1, 4, 2, 5, 3] : (tensor<7x5x6x3x2x2xf32>) -> tensor<7x5x2x6x2x3xf32>
  %2 = stablehlo.reshape %1 : (tensor<7x5x2x6x2x3xf32>) -> tensor<7x10x12x3xf32>
  return %2 : tensor<7x10x12x3xf32>
}
// CHECK: @larger
// CHECK: %[[K:.*]] = stablehlo.convert %{{.*}} : (tensor<2x2x12x3xi1>) -> tensor<2x2x12x3xf32>
// CHECK: stablehlo.convolution(%arg0, %[[K]])
// CHECK-SAME: lhs_dilate = [2, 2]
