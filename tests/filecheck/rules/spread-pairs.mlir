// The elements of all pairs change places in a product with a permutation; nothing has a last dim of two.
func.func public @turned(%x: tensor<3x12xf32>, %table: tensor<6x2xf32>, %other: tensor<6x2xf32>) -> tensor<3x12xf32> {
  %0 = stablehlo.reshape %x : (tensor<3x12xf32>) -> tensor<3x6x1x2xf32>
  %1 = stablehlo.slice %0 [0:3, 0:6, 0:1, 0:1] : (tensor<3x6x1x2xf32>) -> tensor<3x6x1x1xf32>
  %2 = stablehlo.reshape %1 : (tensor<3x6x1x1xf32>) -> tensor<3x6x1xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1, 2] : (tensor<3x6x1xf32>) -> tensor<3x6x2xf32>
  %4 = stablehlo.slice %0 [0:3, 0:6, 0:1, 1:2] : (tensor<3x6x1x2xf32>) -> tensor<3x6x1x1xf32>
  %5 = stablehlo.reshape %4 : (tensor<3x6x1x1xf32>) -> tensor<3x6x1xf32>
  %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1, 2] : (tensor<3x6x1xf32>) -> tensor<3x6x2xf32>
  %7 = stablehlo.broadcast_in_dim %table, dims = [1, 2] : (tensor<6x2xf32>) -> tensor<3x6x2xf32>
  %8 = stablehlo.broadcast_in_dim %other, dims = [1, 2] : (tensor<6x2xf32>) -> tensor<3x6x2xf32>
  %9 = stablehlo.multiply %7, %3 : tensor<3x6x2xf32>
  %10 = stablehlo.multiply %8, %6 : tensor<3x6x2xf32>
  %11 = stablehlo.add %9, %10 : tensor<3x6x2xf32>
  %12 = stablehlo.reshape %11 : (tensor<3x6x2xf32>) -> tensor<3x12xf32>
  return %12 : tensor<3x12xf32>
}
// CHECK: @turned
// CHECK: stablehlo.reshape %arg1 : (tensor<6x2xf32>) -> tensor<12xf32>
// CHECK: %[[S:.*]] = stablehlo.dot_general %arg0, %{{.*}}, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<3x12xf32>, tensor<12x12xf32>) -> tensor<3x12xf32>
// CHECK: stablehlo.multiply %{{.*}}, %[[S]] : tensor<3x12xf32>
// CHECK: %[[E:.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<3x12xf32>
// CHECK: %[[O:.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<3x12xf32>
// CHECK: %[[T:.*]] = stablehlo.select %{{.*}}, %[[E]], %[[O]] : tensor<3x12xi1>, tensor<3x12xf32>
// CHECK: return %[[T]]
