// PASSES: canonicalize,reshape-of-broadcast,reshape-of-branch,dead-code

// One branch makes the result of a reshape, the other of zeros: both can give it as it was before.
func.func public @residual(%p: tensor<i32>, %x: tensor<9x32xf32>) -> tensor<9x32xf32> {
  %c = "stablehlo.case"(%p) ({
    %zero = stablehlo.constant dense<0.0> : tensor<9x4x8xf32>
    stablehlo.return %zero : tensor<9x4x8xf32>
  }, {
    %y = stablehlo.reshape %x : (tensor<9x32xf32>) -> tensor<9x4x8xf32>
    stablehlo.return %y : tensor<9x4x8xf32>
  }) : (tensor<i32>) -> tensor<9x4x8xf32>
  %r = stablehlo.reshape %c : (tensor<9x4x8xf32>) -> tensor<9x32xf32>
  return %r : tensor<9x32xf32>
}
// CHECK: @residual
// CHECK: %[[C:.*]] = "stablehlo.case"(%arg0)
// CHECK: stablehlo.return {{.*}} : tensor<9x32xf32>
// CHECK: stablehlo.return %arg1 : tensor<9x32xf32>
// CHECK: return %[[C]] : tensor<9x32xf32>

// A branch that takes in a reshape makes it itself.
func.func public @taken_in(%p: tensor<i1>, %x: tensor<9x32xf32>, %s: tensor<9x4x8xf32>) -> tensor<9x4x8xf32> {
  %y = stablehlo.reshape %x : (tensor<9x32xf32>) -> tensor<9x4x8xf32>
  %c = "stablehlo.if"(%p) ({
    stablehlo.return %s : tensor<9x4x8xf32>
  }, {
    %z = stablehlo.sine %y : tensor<9x4x8xf32>
    stablehlo.return %z : tensor<9x4x8xf32>
  }) : (tensor<i1>) -> tensor<9x4x8xf32>
  return %c : tensor<9x4x8xf32>
}
// CHECK: @taken_in
// CHECK: %[[C:.*]] = "stablehlo.if"(%arg0)
// CHECK: stablehlo.return %arg2
// CHECK: stablehlo.reshape %arg1 : (tensor<9x32xf32>) -> tensor<9x4x8xf32>
