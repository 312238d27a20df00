// Rows are gathered; an index out of range yields zeros, as a row of a one-hot matrix would.
func.func public @look(%t: tensor<6x3xf32>, %i: tensor<5xi32>) -> tensor<5x3xf32> {
  %0 = stablehlo.iota dim = 1 : tensor<5x6xi32>
  %1 = stablehlo.broadcast_in_dim %i, dims = [0] : (tensor<5xi32>) -> tensor<5x6xi32>
  %2 = stablehlo.compare EQ, %1, %0 : (tensor<5x6xi32>, tensor<5x6xi32>) -> tensor<5x6xi1>
  %3 = stablehlo.convert %2 : (tensor<5x6xi1>) -> tensor<5x6xf32>
  %4 = stablehlo.dot_general %3, %t, contracting_dims = [1] x [0] : (tensor<5x6xf32>, tensor<6x3xf32>) -> tensor<5x3xf32>
  return %4 : tensor<5x3xf32>
}
// CHECK: @look
// CHECK: %[[ROWS:.*]] = "stablehlo.gather"(%arg0
// CHECK: stablehlo.compare GE
// CHECK: stablehlo.compare LT
// CHECK: %[[IN:.*]] = stablehlo.and
// CHECK: stablehlo.select %{{.*}}, %[[ROWS]]
// CHECK-NOT: dot_general
