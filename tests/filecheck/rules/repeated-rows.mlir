// Each of 64 rows twice: two blocks of 32 rows, times a 0/1 matrix of 64 x 32.
func.func public @copies(%x: tensor<3x64x5xbf16>) -> tensor<3x128x5xbf16> {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1, 3] : (tensor<3x64x5xbf16>) -> tensor<3x64x2x5xbf16>
  %1 = stablehlo.reshape %0 : (tensor<3x64x2x5xbf16>) -> tensor<3x128x5xbf16>
  return %1 : tensor<3x128x5xbf16>
}
// CHECK: @copies
// CHECK: %[[X:.*]] = stablehlo.reshape %arg0 : (tensor<3x64x5xbf16>) -> tensor<3x2x32x5xbf16>
// CHECK: %[[P:.*]] = stablehlo.dot_general %{{.*}}, %[[X]], contracting_dims = [1] x [2]
// CHECK-SAME: (tensor<64x32xbf16>, tensor<3x2x32x5xbf16>) -> tensor<64x3x2x5xbf16>
// CHECK: stablehlo.transpose %[[P]], dims = [1, 2, 0, 3]
