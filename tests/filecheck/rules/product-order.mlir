// Far fewer multiplications from the right.
func.func public @chain(%a: tensor<4x5xf32>, %b: tensor<5x3xf32>, %v: tensor<3x2xf32>) -> tensor<4x2xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x5xf32>, tensor<5x3xf32>) -> tensor<4x3xf32>
  %1 = stablehlo.dot_general %0, %v, contracting_dims = [1] x [0] : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  return %1 : tensor<4x2xf32>
}
// CHECK: @chain
// CHECK: %[[L:.*]] = stablehlo.dot_general %arg1, %arg2
// CHECK: stablehlo.dot_general %arg0, %[[L]]
