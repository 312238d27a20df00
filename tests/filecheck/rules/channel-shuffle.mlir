// 2 groups of 3 channels change roles: a product with a permutation.
func.func public @shuffle(%x: tensor<5x6xf32>) -> tensor<5x6xf32> {
  %0 = stablehlo.reshape %x : (tensor<5x6xf32>) -> tensor<5x2x3xf32>
  %1 = stablehlo.transpose %0, dims = [0, 2, 1] : (tensor<5x2x3xf32>) -> tensor<5x3x2xf32>
  %2 = stablehlo.reshape %1 : (tensor<5x3x2xf32>) -> tensor<5x6xf32>
  return %2 : tensor<5x6xf32>
}
// CHECK: @shuffle
// CHECK: stablehlo.remainder
// CHECK: %[[P:.*]] = stablehlo.convert %{{.*}} : (tensor<6x6xi1>) -> tensor<6x6xf32>
// CHECK: stablehlo.dot_general %arg0, %[[P]], contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST]
