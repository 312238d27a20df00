// Two halves of bf16 columns added up in f32.
func.func public @halves(%x: tensor<5x6xbf16>) -> tensor<5x3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reshape %x : (tensor<5x6xbf16>) -> tensor<5x2x3xbf16>
  %1 = stablehlo.convert %0 : (tensor<5x2x3xbf16>) -> tensor<5x2x3xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<5x2x3xf32>, tensor<f32>) -> tensor<5x3xf32>
  return %2 : tensor<5x3xf32>
}
// CHECK: @halves
// CHECK: stablehlo.slice %arg0 [0:5, 0:3]
// CHECK: stablehlo.slice %arg0 [0:5, 3:6]
// CHECK: stablehlo.add %{{.*}}, %{{.*}} : tensor<5x3xf32>
