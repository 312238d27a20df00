// The conjugate of complex numbers stored as pairs, times i: (a, b) -> (b, a). Each column needs the one beside it.
func.func public @swap(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %0 = stablehlo.reshape %x : (tensor<3x8xf32>) -> tensor<3x4x2xf32>
  %1 = stablehlo.slice %0 [0:3, 0:4, 0:1] : (tensor<3x4x2xf32>) -> tensor<3x4x1xf32>
  %2 = stablehlo.slice %0 [0:3, 0:4, 1:2] : (tensor<3x4x2xf32>) -> tensor<3x4x1xf32>
  %3 = stablehlo.concatenate %2, %1, dim = 2 : (tensor<3x4x1xf32>, tensor<3x4x1xf32>) -> tensor<3x4x2xf32>
  %4 = stablehlo.reshape %3 : (tensor<3x4x2xf32>) -> tensor<3x8xf32>
  return %4 : tensor<3x8xf32>
}
// CHECK: @swap
// CHECK: stablehlo.remainder
// CHECK: %[[L:.*]] = stablehlo.pad %arg0, %{{.*}}, low = [0, -1], high = [0, 1], interior = [0, 0]
// CHECK: %[[R:.*]] = stablehlo.pad %arg0, %{{.*}}, low = [0, 1], high = [0, -1], interior = [0, 0]
// CHECK: stablehlo.select %{{.*}}, %[[L]], %[[R]]
// One table for all rows, as rotary embeddings have it, is repeated before it is spread.
func.func public @turned(%x: tensor<9x8xf32>, %c: tensor<4xf32>) -> tensor<9x8xf32> {
  %0 = stablehlo.slice %x [0:9, 0:8:2] : (tensor<9x8xf32>) -> tensor<9x4xf32>
  %1 = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<4xf32>) -> tensor<9x4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<9x4xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<9x4xf32>) -> tensor<9x4x1xf32>
  %4 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<9x4xf32>) -> tensor<9x4x1xf32>
  %5 = stablehlo.concatenate %4, %3, dim = 2 : (tensor<9x4x1xf32>, tensor<9x4x1xf32>) -> tensor<9x4x2xf32>
  %6 = stablehlo.reshape %5 : (tensor<9x4x2xf32>) -> tensor<9x8xf32>
  return %6 : tensor<9x8xf32>
}
// CHECK: @turned
// CHECK: %[[S:.*]] = stablehlo.pad %arg0
// CHECK: %[[T:.*]] = stablehlo.broadcast_in_dim %arg1, dims = [0] : (tensor<4xf32>) -> tensor<4x2xf32>
// CHECK: %[[W:.*]] = stablehlo.reshape %[[T]] : (tensor<4x2xf32>) -> tensor<8xf32>
// CHECK: stablehlo.multiply %[[S]]
// CHECK: stablehlo.select
// The gradient of x[:, ::2] * x[:, 1::2]: two padded arrays are added.
func.func public @gradient(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.slice %x [0:3, 0:8:2] : (tensor<3x8xf32>) -> tensor<3x4xf32>
  %1 = stablehlo.slice %x [0:3, 1:8:2] : (tensor<3x8xf32>) -> tensor<3x4xf32>
  %2 = stablehlo.pad %0, %zero, low = [0, 1], high = [0, 0], interior = [0, 1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3x8xf32>
  %3 = stablehlo.pad %1, %zero, low = [0, 0], high = [0, 1], interior = [0, 1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3x8xf32>
  %4 = stablehlo.add %2, %3 : tensor<3x8xf32>
  return %4 : tensor<3x8xf32>
}
// CHECK: @gradient
// CHECK: %[[L:.*]] = stablehlo.pad %arg0, %{{.*}}, low = [0, -1], high = [0, 1]
// CHECK: %[[R:.*]] = stablehlo.pad %arg0, %{{.*}}, low = [0, 1], high = [0, -1]
// CHECK: %[[S:.*]] = stablehlo.select %{{.*}}, %[[L]], %[[R]]
// CHECK: stablehlo.add %[[S]]
