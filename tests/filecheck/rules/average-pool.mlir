// A mean of 2x3 blocks, f32 sums of bf16: the conversion stays before the window, the division behind it.
func.func public @mean(%x: tensor<2x4x6x8xbf16>) -> tensor<2x2x2x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %six = stablehlo.constant dense<6.0> : tensor<2x2x2x8xf32>
  %0 = stablehlo.reshape %x : (tensor<2x4x6x8xbf16>) -> tensor<2x2x2x2x3x8xbf16>
  %1 = stablehlo.convert %0 : (tensor<2x2x2x2x3x8xbf16>) -> tensor<2x2x2x2x3x8xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [2, 4] : (tensor<2x2x2x2x3x8xf32>, tensor<f32>) -> tensor<2x2x2x8xf32>
  %3 = stablehlo.divide %2, %six : tensor<2x2x2x8xf32>
  return %3 : tensor<2x2x2x8xf32>
}
// CHECK: @mean
// CHECK: %[[X:.*]] = stablehlo.convert %arg0 : (tensor<2x4x6x8xbf16>) -> tensor<2x4x6x8xf32>
// CHECK: %[[W:.*]] = "stablehlo.reduce_window"(%[[X]]
// CHECK-SAME: window_dimensions = array<i64: 1, 2, 3, 1>, window_strides = array<i64: 1, 2, 3, 1>
// CHECK: stablehlo.add
// CHECK: stablehlo.divide
// A mean of means is one window, and what the inner sums were divided by.
func.func public @twice(%x: tensor<4x4x8xf32>) -> tensor<2x2x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %two = stablehlo.constant dense<2.0> : tensor<2x2x2x8xf32>
  %0 = stablehlo.reshape %x : (tensor<4x4x8xf32>) -> tensor<2x2x2x2x8xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [3] : (tensor<2x2x2x2x8xf32>, tensor<f32>) -> tensor<2x2x2x8xf32>
  %2 = stablehlo.divide %1, %two : tensor<2x2x2x8xf32>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x2x2x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  return %3 : tensor<2x2x8xf32>
}
// CHECK: @twice
// CHECK: window_dimensions = array<i64: 2, 2, 1>
// CHECK: dense<5.000000e-01>
// CHECK: stablehlo.multiply
