func.func public @write(%i: tensor<4x1x1xi32>, %g: tensor<4x1xf32>) -> tensor<4x7xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<4x7xf32>
  %1 = "stablehlo.scatter"(%0, %i, %g) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x7xf32>, tensor<4x1x1xi32>, tensor<4x1xf32>) -> tensor<4x7xf32>
  return %1 : tensor<4x7xf32>
}
// CHECK: @write
// CHECK: %[[HIT:.*]] = stablehlo.compare EQ
// CHECK: stablehlo.select %[[HIT]]
// CHECK-NOT: scatter
