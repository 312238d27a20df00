// Rows out of range are left out by both.
func.func public @add(%i: tensor<7x1xi32>, %g: tensor<7x3xf32>) -> tensor<5x3xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<5x3xf32>
  %1 = "stablehlo.scatter"(%0, %i, %g) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<5x3xf32>, tensor<7x1xi32>, tensor<7x3xf32>) -> tensor<5x3xf32>
  return %1 : tensor<5x3xf32>
}
// CHECK: @add
// CHECK: %[[HIT:.*]] = stablehlo.compare EQ
// CHECK: %[[HOT:.*]] = stablehlo.convert %[[HIT]]
// CHECK: stablehlo.dot_general %[[HOT]], {{.*}}contracting_dims = [0] x [0], precision = [HIGHEST, HIGHEST]
// CHECK-NOT: scatter
