// Every other column: a slice with a stride.
func.func public @even(%x: tensor<3x8xf32>) -> tensor<3x4xf32> {
  %n = stablehlo.iota dim = 0 : tensor<4x1xi32>
  %two = stablehlo.constant dense<2> : tensor<4x1xi32>
  %i = stablehlo.multiply %n, %two : tensor<4x1xi32>
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 3, 1>}> : (tensor<3x8xf32>, tensor<4x1xi32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}
// CHECK: @even
// CHECK: stablehlo.slice %arg0 [0:3, 0:7:2]
// CHECK-NOT: gather

// A roll is two slices.
func.func public @roll(%x: tensor<5x2xf32>) -> tensor<5x2xf32> {
  %i = stablehlo.constant dense<[[3], [4], [0], [1], [2]]> : tensor<5x1xi32>
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 2>}> : (tensor<5x2xf32>, tensor<5x1xi32>) -> tensor<5x2xf32>
  return %0 : tensor<5x2xf32>
}
// CHECK: @roll
// CHECK: %[[A:.*]] = stablehlo.slice %arg0 [3:5, 0:2]
// CHECK: %[[B:.*]] = stablehlo.slice %arg0 [0:3, 0:2]
// CHECK: stablehlo.concatenate %[[A]], %[[B]], dim = 0

// Every row twice, as resizing to the nearest pixel does.
func.func public @nearest(%x: tensor<2x3xf32>) -> tensor<4x3xf32> {
  %i = stablehlo.constant dense<[[0], [0], [1], [1]]> : tensor<4x1xi32>
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 3>}> : (tensor<2x3xf32>, tensor<4x1xi32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
// CHECK: @nearest
// CHECK: stablehlo.broadcast_in_dim %arg0, dims = [0, 2] : (tensor<2x3xf32>) -> tensor<2x2x3xf32>
// CHECK-NOT: gather
