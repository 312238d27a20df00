// The sum of squares of two arrays in one vector: each is summed by itself in its own shape.
func.func public @norm(%a: tensor<4x3xf32>, %b: tensor<3xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %0 = stablehlo.reshape %a : (tensor<4x3xf32>) -> tensor<12xf32>
  %1 = stablehlo.concatenate %0, %b, dim = 0 : (tensor<12xf32>, tensor<3xf32>) -> tensor<15xf32>
  %2 = stablehlo.multiply %1, %1 : tensor<15xf32>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<15xf32>, tensor<f32>) -> tensor<f32>
  return %3 : tensor<f32>
}
// CHECK: @norm
// CHECK: %[[A:.*]] = stablehlo.multiply %arg0, %arg0 : tensor<4x3xf32>
// CHECK: %[[B:.*]] = stablehlo.multiply %arg1, %arg1 : tensor<3xf32>
// CHECK: %[[S:.*]] = stablehlo.reduce(%[[A]] init: %{{.*}}) applies stablehlo.add across dimensions = [0, 1]
// CHECK: %[[T:.*]] = stablehlo.reduce(%[[B]] init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK: %[[U:.*]] = stablehlo.add %[[S]], %[[T]] : tensor<f32>
// CHECK: return %[[U]]
