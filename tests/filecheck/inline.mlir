// PASSES: inline

// Calls of calls go, and so do the functions nobody names any more.
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = call @twice(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %a : tensor<4xf32>
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
// CHECK: return %[[A]]
// CHECK-NOT: func.func private
