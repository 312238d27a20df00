// Two blocks of 256 rows: a triangle inside each, and the total of the first for the second.
func.func public @count(%hit: tensor<512x3xi1>) -> tensor<512x3xf32> {
  %0 = stablehlo.convert %hit : (tensor<512x3xi1>) -> tensor<512x3xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = "stablehlo.reduce_window"(%0, %zero) <{padding = dense<[[511, 0], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 512, 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }) : (tensor<512x3xf32>, tensor<f32>) -> tensor<512x3xf32>
  return %1 : tensor<512x3xf32>
}
// CHECK: @count
// CHECK: stablehlo.compare GE
// CHECK: stablehlo.dot_general {{.*}} : (tensor<256x256xbf16>, tensor<2x256x3xbf16>) -> tensor<256x2x3xf32>
// CHECK: stablehlo.compare GT
// CHECK: stablehlo.dot_general {{.*}} precision = [HIGHEST, HIGHEST] : (tensor<2x2xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
// CHECK-NOT: reduce_window
