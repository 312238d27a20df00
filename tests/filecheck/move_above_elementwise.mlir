// PASSES: canonicalize,reshape-of-elementwise,move-above-elementwise,dead-code

// A full operand keeps the inner reshape from sinking; the outer one rises instead, and one of the two is left.
func.func public @full(%x: tensor<4x6xf32>, %z: tensor<4x2x3xf32>) -> tensor<4x6xf32> {
  %y = stablehlo.reshape %x : (tensor<4x6xf32>) -> tensor<4x2x3xf32>
  %e = stablehlo.exponential %y : tensor<4x2x3xf32>
  %f = stablehlo.multiply %e, %z : tensor<4x2x3xf32>
  %r = stablehlo.reshape %f : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
  return %r : tensor<4x6xf32>
}
// CHECK: @full
// CHECK: %[[E:.*]] = stablehlo.exponential %arg0 : tensor<4x6xf32>
// CHECK: %[[Z:.*]] = stablehlo.reshape %arg1 : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
// CHECK: stablehlo.multiply %[[E]], %[[Z]] : tensor<4x6xf32>
// CHECK-NOT: reshape

// A tree of broadcasts alone: the small operand is reshaped.
func.func public @spread(%v: tensor<4x2xf32>) -> tensor<4x5x6xf32> {
  %b = stablehlo.broadcast_in_dim %v, dims = [0, 2] : (tensor<4x2xf32>) -> tensor<4x5x2x3xf32>
  %e = stablehlo.exponential %b : tensor<4x5x2x3xf32>
  %r = stablehlo.reshape %e : (tensor<4x5x2x3xf32>) -> tensor<4x5x6xf32>
  return %r : tensor<4x5x6xf32>
}
// CHECK: @spread
// CHECK: stablehlo.reshape {{.*}} : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
// CHECK: stablehlo.exponential {{.*}} : tensor<4x5x6xf32>
// CHECK-NOT: reshape

// Nothing falls away: a reshape of f(Z) is one reshape either way, and of f(Z, W) it would become two.
func.func public @one_for_two(%z: tensor<4x2x3xf32>, %w: tensor<4x2x3xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %e = stablehlo.exponential %z : tensor<4x2x3xf32>
  %r = stablehlo.reshape %e : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
  %f = stablehlo.add %z, %w : tensor<4x2x3xf32>
  %s = stablehlo.reshape %f : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
  return %r, %s : tensor<4x6xf32>, tensor<4x6xf32>
}
// CHECK: @one_for_two
// CHECK: %[[E:.*]] = stablehlo.exponential %arg0 : tensor<4x2x3xf32>
// CHECK: stablehlo.reshape %[[E]]
// CHECK: %[[F:.*]] = stablehlo.add %arg0, %arg1 : tensor<4x2x3xf32>
// CHECK: stablehlo.reshape %[[F]]

// Somebody else needs f in its shape, so it would be computed twice.
func.func public @needed(%x: tensor<4x6xf32>, %z: tensor<4x2x3xf32>) -> (tensor<4x6xf32>, tensor<4x2x3xf32>) {
  %y = stablehlo.reshape %x : (tensor<4x6xf32>) -> tensor<4x2x3xf32>
  %f = stablehlo.multiply %y, %z : tensor<4x2x3xf32>
  %r = stablehlo.reshape %f : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
  return %r, %f : tensor<4x6xf32>, tensor<4x2x3xf32>
}
// CHECK: @needed
// CHECK: stablehlo.multiply {{.*}} : tensor<4x2x3xf32>
// CHECK: stablehlo.reshape {{.*}} -> tensor<4x6xf32>

// What is not elementwise stops it.
func.func public @reversed(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %y = stablehlo.reshape %x : (tensor<4x6xf32>) -> tensor<4x2x3xf32>
  %f = stablehlo.reverse %y, dims = [1] : tensor<4x2x3xf32>
  %r = stablehlo.reshape %f : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
  return %r : tensor<4x6xf32>
}
// CHECK: @reversed
// CHECK: stablehlo.reshape %arg0
// CHECK: stablehlo.reverse {{.*}} : tensor<4x2x3xf32>
// CHECK: stablehlo.reshape

// Transposes likewise: heads that are weighted by a full array on their way there and back.
func.func public @turned(%x: tensor<4x5x6xf32>, %z: tensor<5x4x6xf32>) -> tensor<4x5x6xf32> {
  %y = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<4x5x6xf32>) -> tensor<5x4x6xf32>
  %f = stablehlo.multiply %y, %z : tensor<5x4x6xf32>
  %r = stablehlo.transpose %f, dims = [1, 0, 2] : (tensor<5x4x6xf32>) -> tensor<4x5x6xf32>
  return %r : tensor<4x5x6xf32>
}
// CHECK: @turned
// CHECK: %[[Z:.*]] = stablehlo.transpose %arg1, dims = [1, 0, 2]
// CHECK: stablehlo.multiply %arg0, %[[Z]] : tensor<4x5x6xf32>
// CHECK-NOT: transpose

// Another order does not lead back: two transposes either way.
func.func public @turned_on(%x: tensor<4x5x6xf32>, %z: tensor<5x6x4xf32>) -> tensor<6x4x5xf32> {
  %y = stablehlo.transpose %x, dims = [1, 2, 0] : (tensor<4x5x6xf32>) -> tensor<5x6x4xf32>
  %f = stablehlo.multiply %y, %z : tensor<5x6x4xf32>
  %r = stablehlo.transpose %f, dims = [1, 2, 0] : (tensor<5x6x4xf32>) -> tensor<6x4x5xf32>
  return %r : tensor<6x4x5xf32>
}
// CHECK: @turned_on
// CHECK: stablehlo.transpose %arg0
// CHECK: stablehlo.multiply {{.*}} : tensor<5x6x4xf32>
// CHECK: stablehlo.transpose
