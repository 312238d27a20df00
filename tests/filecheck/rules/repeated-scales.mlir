// Scales of groups of 3 columns, multiplied in a dim of groups: spread by a product with a 0/1 matrix of 2 x 6.
func.func public @weights(%w: tensor<5x6xi8>, %s: tensor<5x2xf32>) -> tensor<5x6xf32> {
  %0 = stablehlo.reshape %w : (tensor<5x6xi8>) -> tensor<5x2x3xi8>
  %1 = stablehlo.convert %0 : (tensor<5x2x3xi8>) -> tensor<5x2x3xf32>
  %2 = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<5x2xf32>) -> tensor<5x2x3xf32>
  %3 = stablehlo.multiply %1, %2 : tensor<5x2x3xf32>
  %4 = stablehlo.reshape %3 : (tensor<5x2x3xf32>) -> tensor<5x6xf32>
  return %4 : tensor<5x6xf32>
}
// CHECK: @weights
// CHECK: %[[M:.*]] = stablehlo.convert %{{.*}} : (tensor<2x6xi1>) -> tensor<2x6xf32>
// CHECK: stablehlo.dot_general %arg1, %[[M]], contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST]
// CHECK: stablehlo.convert %arg0 : (tensor<5x6xi8>) -> tensor<5x6xf32>
// CHECK: stablehlo.multiply
