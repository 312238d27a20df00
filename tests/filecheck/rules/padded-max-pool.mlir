// Zeros around a relu's result are never the largest of a window: the pooling pads by itself.
func.func public @pool(%x: tensor<1x4x4x2xf32>) -> tensor<1x2x2x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<1x4x4x2xf32>
  %0 = stablehlo.maximum %x, %zeros : tensor<1x4x4x2xf32>
  %1 = stablehlo.pad %0, %zero, low = [0, 1, 1, 0], high = [0, 1, 1, 0], interior = [0, 0, 0, 0] : (tensor<1x4x4x2xf32>, tensor<f32>) -> tensor<1x6x6x2xf32>
  %2 = "stablehlo.reduce_window"(%1, %low) <{window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) : (tensor<1x6x6x2xf32>, tensor<f32>) -> tensor<1x2x2x2xf32>
  return %2 : tensor<1x2x2x2xf32>
}
// CHECK: @pool
// CHECK: %[[R:.*]] = stablehlo.maximum %arg0
// CHECK: "stablehlo.reduce_window"(%[[R]]
