// PASSES: canonicalize,reshape-of-dynamic-slice,dead-code

// One row of a stack: the rows' number is left alone, so the row is taken first.
func.func public @row(%x: tensor<5x9x32xf32>, %i: tensor<i32>, %o: tensor<i32>) -> tensor<1x9x4x8xf32> {
  %y = stablehlo.reshape %x : (tensor<5x9x32xf32>) -> tensor<5x9x4x8xf32>
  %z = stablehlo.dynamic_slice %y, %i, %o, %o, %o, sizes = [1, 9, 4, 8] : (tensor<5x9x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x9x4x8xf32>
  return %z : tensor<1x9x4x8xf32>
}
// CHECK: @row
// CHECK: %[[S:.*]] = stablehlo.dynamic_slice %arg0, %arg1, {{.*}} sizes = [1, 9, 32] : {{.*}} -> tensor<1x9x32xf32>
// CHECK: stablehlo.reshape %[[S]] : (tensor<1x9x32xf32>) -> tensor<1x9x4x8xf32>

// An update of a row: only the row is reshaped back.
func.func public @update(%x: tensor<5x9x32xf32>, %r: tensor<1x9x4x8xf32>, %i: tensor<i32>) -> tensor<5x9x32xf32> {
  %y = stablehlo.reshape %x : (tensor<5x9x32xf32>) -> tensor<5x9x4x8xf32>
  %z = stablehlo.dynamic_update_slice %y, %r, %i, %i, %i, %i : (tensor<5x9x4x8xf32>, tensor<1x9x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<5x9x4x8xf32>
  %w = stablehlo.reshape %z : (tensor<5x9x4x8xf32>) -> tensor<5x9x32xf32>
  return %w : tensor<5x9x32xf32>
}
// CHECK: @update
// CHECK: %[[R:.*]] = stablehlo.reshape %arg1 : (tensor<1x9x4x8xf32>) -> tensor<1x9x32xf32>
// CHECK: %[[U:.*]] = stablehlo.dynamic_update_slice %arg0, %[[R]], %arg2, {{.*}} -> tensor<5x9x32xf32>
// CHECK: return %[[U]]

// A slice of a part of the split dim: nothing passes.
func.func public @part(%x: tensor<5x9x32xf32>, %i: tensor<i32>) -> tensor<5x9x2x8xf32> {
  %y = stablehlo.reshape %x : (tensor<5x9x32xf32>) -> tensor<5x9x4x8xf32>
  %z = stablehlo.dynamic_slice %y, %i, %i, %i, %i, sizes = [5, 9, 2, 8] : (tensor<5x9x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<5x9x2x8xf32>
  return %z : tensor<5x9x2x8xf32>
}
// CHECK: @part
// CHECK: %[[Y:.*]] = stablehlo.reshape %arg0
// CHECK: stablehlo.dynamic_slice %[[Y]]
