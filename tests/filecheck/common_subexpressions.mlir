// PASSES: common-subexpressions

// Equal operations on equal operands, whatever they are called; another direction is another comparison.
func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xi1>, tensor<4xi1>) {
  %a = stablehlo.sine %x : tensor<4xf32>
  %b = stablehlo.sine %x : tensor<4xf32>
  %c = stablehlo.compare LT, %a, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %d = stablehlo.compare GE, %b, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  return %c, %d : tensor<4xi1>, tensor<4xi1>
}
// CHECK: @main
// CHECK: %[[S:.*]] = stablehlo.sine %arg0
// CHECK: %[[C:.*]] = stablehlo.compare LT, %[[S]], %arg1
// CHECK: %[[D:.*]] = stablehlo.compare GE, %[[S]], %arg1
// CHECK: return %[[C]], %[[D]]
