// Each of 4 columns 3 times: a product with a 0/1 matrix of 4 x 12, exact in f32 at the highest precision.
func.func public @copies(%x: tensor<5x4xf32>) -> tensor<5x12xf32> {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1] : (tensor<5x4xf32>) -> tensor<5x4x3xf32>
  %1 = stablehlo.reshape %0 : (tensor<5x4x3xf32>) -> tensor<5x12xf32>
  return %1 : tensor<5x12xf32>
}
// CHECK: @copies
// CHECK: stablehlo.divide
// CHECK: %[[M:.*]] = stablehlo.convert %{{.*}} : (tensor<4x12xi1>) -> tensor<4x12xf32>
// CHECK: stablehlo.dot_general %arg0, %[[M]], contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST]
// The gradient of a mean over bf16 converts between the copies and the reshape.
func.func public @gradient(%x: tensor<5x4xf32>) -> tensor<5x12xbf16> {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1] : (tensor<5x4xf32>) -> tensor<5x4x3xf32>
  %1 = stablehlo.convert %0 : (tensor<5x4x3xf32>) -> tensor<5x4x3xbf16>
  %2 = stablehlo.reshape %1 : (tensor<5x4x3xbf16>) -> tensor<5x12xbf16>
  return %2 : tensor<5x12xbf16>
}
// CHECK: @gradient
// CHECK: %[[X:.*]] = stablehlo.convert %arg0 : (tensor<5x4xf32>) -> tensor<5x4xbf16>
// CHECK: stablehlo.dot_general %[[X]]
