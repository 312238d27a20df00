// What is not picked counts as -0.0, the identity of the sum.
func.func public @pick(%x: tensor<4x7xf32>, %i: tensor<4x1x1xi32>) -> tensor<4x1xf32> {
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<4x7xf32>, tensor<4x1x1xi32>) -> tensor<4x1xf32>
  return %0 : tensor<4x1xf32>
}
// CHECK: @pick
// CHECK: stablehlo.clamp
// CHECK: %[[HIT:.*]] = stablehlo.compare EQ
// CHECK: stablehlo.constant dense<-0.000000e+00>
// CHECK: %[[KEPT:.*]] = stablehlo.select %[[HIT]], %arg0
// CHECK: stablehlo.reduce(%[[KEPT]] {{.*}} dimensions = [1]
// CHECK-NOT: gather
