// The adapter meets the rows, not the weights.
func.func public @adapter(%x: tensor<3x8xf32>, %w: tensor<8x9xf32>, %a: tensor<8x2xf32>, %b: tensor<2x9xf32>) -> tensor<3x9xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<8x2xf32>, tensor<2x9xf32>) -> tensor<8x9xf32>
  %1 = stablehlo.add %w, %0 : tensor<8x9xf32>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [1] x [0] : (tensor<3x8xf32>, tensor<8x9xf32>) -> tensor<3x9xf32>
  return %2 : tensor<3x9xf32>
}
// CHECK: @adapter
// CHECK: %[[M:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK: %[[D:.*]] = stablehlo.dot_general %arg0, %arg2
// CHECK: %[[S:.*]] = stablehlo.dot_general %[[D]], %arg3
// CHECK: stablehlo.add %[[M]], %[[S]]
