// PASSES: dead-code

// What nobody uses goes, chains of it too; what has an effect stays.
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = stablehlo.negate %x : tensor<4xf32>
  %b = stablehlo.sine %a : tensor<4xf32>
  %c = stablehlo.custom_call @log(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
  return %x : tensor<4xf32>
}
// CHECK: @main
// CHECK: stablehlo.custom_call @log(%arg0)
// CHECK: return %arg0
