// A gather clamps its indices, so the one-hot rows do.
func.func public @rows(%t: tensor<5x3xf32>, %i: tensor<4x1xi32>) -> tensor<4x3xf32> {
  %0 = "stablehlo.gather"(%t, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 3>}> : (tensor<5x3xf32>, tensor<4x1xi32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
// CHECK: @rows
// CHECK: stablehlo.clamp
// CHECK: stablehlo.compare EQ
// CHECK: stablehlo.dot_general {{.*}}, %arg0, {{.*}} precision = [HIGHEST, HIGHEST]
// CHECK-NOT: gather
