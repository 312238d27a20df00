// The smallest of 2x2 blocks. Batch and time are joined on the way, which costs nothing: a reshape of that alone stays.
func.func public @least(%x: tensor<2x3x4x4x8xf32>) -> tensor<6x2x2x8xf32> {
  %inf = stablehlo.constant dense<0x7F800000> : tensor<f32>
  %0 = stablehlo.reshape %x : (tensor<2x3x4x4x8xf32>) -> tensor<6x2x2x2x2x8xf32>
  %1 = stablehlo.reduce(%0 init: %inf) applies stablehlo.minimum across dimensions = [2, 4] : (tensor<6x2x2x2x2x8xf32>, tensor<f32>) -> tensor<6x2x2x8xf32>
  return %1 : tensor<6x2x2x8xf32>
}
// CHECK: @least
// CHECK: %[[X:.*]] = stablehlo.reshape %arg0 : (tensor<2x3x4x4x8xf32>) -> tensor<6x4x4x8xf32>
// CHECK: "stablehlo.reduce_window"(%[[X]]
// CHECK-SAME: window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>
// CHECK: stablehlo.minimum
