// Pairs rotated by a quarter: columns swapped by a product with a permutation, exact in f32 at the highest precision.
func.func public @quarter(%x: tensor<5x6xf32>) -> tensor<5x6xf32> {
  %0 = stablehlo.slice %x [0:5, 0:6:2] : (tensor<5x6xf32>) -> tensor<5x3xf32>
  %1 = stablehlo.slice %x [0:5, 1:6:2] : (tensor<5x6xf32>) -> tensor<5x3xf32>
  %2 = stablehlo.negate %1 : tensor<5x3xf32>
  %3 = stablehlo.reshape %2 : (tensor<5x3xf32>) -> tensor<5x3x1xf32>
  %4 = stablehlo.reshape %0 : (tensor<5x3xf32>) -> tensor<5x3x1xf32>
  %5 = stablehlo.concatenate %3, %4, dim = 2 : (tensor<5x3x1xf32>, tensor<5x3x1xf32>) -> tensor<5x3x2xf32>
  %6 = stablehlo.reshape %5 : (tensor<5x3x2xf32>) -> tensor<5x6xf32>
  return %6 : tensor<5x6xf32>
}
// CHECK: @quarter
// CHECK: stablehlo.xor
// CHECK: %[[P:.*]] = stablehlo.convert %{{.*}} : (tensor<6x6xi1>) -> tensor<6x6xf32>
// CHECK: %[[Y:.*]] = stablehlo.dot_general %arg0, %[[P]], contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST]
// CHECK: stablehlo.select %{{.*}}, %{{.*}}, %[[Y]]
