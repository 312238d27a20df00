// The keys have 2 heads, each repeated for 4 heads of the queries: the queries are grouped, the keys stay as they are.
func.func public @scores(%q: tensor<3x8x16xf32>, %k: tensor<3x5x2x16xf32>) -> tensor<3x8x5xf32> {
  %0 = stablehlo.broadcast_in_dim %k, dims = [0, 1, 2, 4] : (tensor<3x5x2x16xf32>) -> tensor<3x5x2x4x16xf32>
  %1 = stablehlo.reshape %0 : (tensor<3x5x2x4x16xf32>) -> tensor<3x5x8x16xf32>
  %2 = stablehlo.dot_general %q, %1, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3] : (tensor<3x8x16xf32>, tensor<3x5x8x16xf32>) -> tensor<3x8x5xf32>
  return %2 : tensor<3x8x5xf32>
}
// CHECK: @scores
// CHECK: stablehlo.reshape %arg0 : (tensor<3x8x16xf32>) -> tensor<3x2x4x16xf32>
// CHECK: %[[P:.*]] = stablehlo.dot_general %{{.*}}, %arg1, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [3]
// CHECK: stablehlo.reshape %[[P]] : (tensor<3x2x4x5xf32>) -> tensor<3x8x5xf32>
// CHECK-NOT: broadcast_in_dim
