// The weights become a kernel, the image is read as it is.
func.func public @patches(%x: tensor<2x4x6x3xf32>, %k: tensor<12x4xf32>) -> tensor<2x6x4xf32> {
  %0 = stablehlo.reshape %x : (tensor<2x4x6x3xf32>) -> tensor<2x2x2x3x2x3xf32>
  %1 = stablehlo.transpose %0, dims = [0, 1, 3, 2, 4, 5] : (tensor<2x2x2x3x2x3xf32>) -> tensor<2x2x3x2x2x3xf32>
  %2 = stablehlo.reshape %1 : (tensor<2x2x3x2x2x3xf32>) -> tensor<2x6x12xf32>
  %3 = stablehlo.dot_general %2, %k, contracting_dims = [2] x [0] : (tensor<2x6x12xf32>, tensor<12x4xf32>) -> tensor<2x6x4xf32>
  return %3 : tensor<2x6x4xf32>
}
// CHECK: @patches
// CHECK: %[[K:.*]] = stablehlo.reshape %arg1 : (tensor<12x4xf32>) -> tensor<2x2x3x4xf32>
// CHECK: stablehlo.convolution(%arg0, %[[K]]) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2]
// CHECK-NOT: transpose
