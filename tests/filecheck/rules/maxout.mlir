// The smaller of every two of 6 columns: one product picks columns 0, 2, 4, one columns 1, 3, 5.
func.func public @least(%x: tensor<5x6xf32>) -> tensor<5x3xf32> {
  %inf = stablehlo.constant dense<0x7F800000> : tensor<f32>
  %0 = stablehlo.reshape %x : (tensor<5x6xf32>) -> tensor<5x3x2xf32>
  %1 = stablehlo.reduce(%0 init: %inf) applies stablehlo.minimum across dimensions = [2] : (tensor<5x3x2xf32>, tensor<f32>) -> tensor<5x3xf32>
  return %1 : tensor<5x3xf32>
}
// CHECK: @least
// CHECK: %[[A:.*]] = stablehlo.dot_general %arg0, %{{.*}}, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<5x6xf32>, tensor<6x3xf32>)
// CHECK: %[[B:.*]] = stablehlo.dot_general %arg0, %{{.*}}, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<5x6xf32>, tensor<6x3xf32>)
// CHECK: stablehlo.minimum %[[A]], %[[B]]
