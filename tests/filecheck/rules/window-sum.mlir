// Every 4 of 256 rows: two blocks of 128 rows times a 0/1 matrix of 128 x 32, bf16 in and f32 out.
func.func public @sums(%x: tensor<2x256x3xbf16>) -> tensor<2x64x3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reshape %x : (tensor<2x256x3xbf16>) -> tensor<2x64x4x3xbf16>
  %1 = stablehlo.convert %0 : (tensor<2x64x4x3xbf16>) -> tensor<2x64x4x3xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x64x4x3xf32>, tensor<f32>) -> tensor<2x64x3xf32>
  return %2 : tensor<2x64x3xf32>
}
// CHECK: @sums
// CHECK: %[[X:.*]] = stablehlo.reshape %arg0 : (tensor<2x256x3xbf16>) -> tensor<2x2x128x3xbf16>
// CHECK: %[[P:.*]] = stablehlo.dot_general %{{.*}}, %[[X]], contracting_dims = [1] x [2]
// CHECK-SAME: (tensor<32x128xbf16>, tensor<2x2x128x3xbf16>) -> tensor<32x2x2x3xf32>
// CHECK: stablehlo.transpose %[[P]], dims = [1, 2, 0, 3]
