// PASSES: inline,common-subexpressions,dead-code

func.func public @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %a = call @twice(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b = call @twice(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %c = stablehlo.multiply %a, %b : tensor<4xf32>
  %dead = stablehlo.negate %c : tensor<4xf32>
  return %c : tensor<4xf32>
}
func.func private @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = call @inner(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b = stablehlo.add %a, %a : tensor<4xf32>
  return %b : tensor<4xf32>
}
func.func private @inner(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = stablehlo.sine %x : tensor<4xf32>
  return %a : tensor<4xf32>
}
// CHECK: @main
// CHECK: %[[S:.*]] = stablehlo.sine %arg0
// CHECK: %[[A:.*]] = stablehlo.add %[[S]], %[[S]]
// CHECK: %[[M:.*]] = stablehlo.multiply %[[A]], %[[A]]
// CHECK: return %[[M]]
// CHECK-NOT: func.func private
