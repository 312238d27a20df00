// PASSES: canonicalize,reshape-of-elementwise,dead-code

// The patent's second rewrite: the outer reshape meets its inverse.
func.func public @patent(%x: tensor<8x6xf32>, %y: tensor<8x2xf32>) -> tensor<8x6xf32> {
  %a = stablehlo.reshape %x : (tensor<8x6xf32>) -> tensor<8x2x3xf32>
  %b = stablehlo.broadcast_in_dim %y, dims = [0, 1] : (tensor<8x2xf32>) -> tensor<8x2x3xf32>
  %c = stablehlo.add %a, %b : tensor<8x2x3xf32>
  %d = stablehlo.reshape %c : (tensor<8x2x3xf32>) -> tensor<8x6xf32>
  return %d : tensor<8x6xf32>
}
// CHECK: @patent
// CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %arg1, dims = [0, 1] {{.*}} -> tensor<8x2x3xf32>
// CHECK: %[[R:.*]] = stablehlo.reshape %[[B]] : (tensor<8x2x3xf32>) -> tensor<8x6xf32>
// CHECK: %[[C:.*]] = stablehlo.add %arg0, %[[R]] : tensor<8x6xf32>
// CHECK: return %[[C]]

// Groups and the rest: the statistic of a group meets its channels before the pixels.
func.func public @rest(%x: tensor<6x4x5xf32>, %y: tensor<3xf32>) -> tensor<6x4x5xf32> {
  %a = stablehlo.reshape %x : (tensor<6x4x5xf32>) -> tensor<3x40xf32>
  %b = stablehlo.broadcast_in_dim %y, dims = [0] : (tensor<3xf32>) -> tensor<3x40xf32>
  %c = stablehlo.subtract %a, %b : tensor<3x40xf32>
  %d = stablehlo.reshape %c : (tensor<3x40xf32>) -> tensor<6x4x5xf32>
  return %d : tensor<6x4x5xf32>
}
// CHECK: @rest
// CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %arg1, dims = [0] : (tensor<3xf32>) -> tensor<3x2xf32>
// CHECK: %[[R:.*]] = stablehlo.reshape %[[B]] : (tensor<3x2xf32>) -> tensor<6xf32>
// CHECK: %[[W:.*]] = stablehlo.broadcast_in_dim %[[R]], dims = [0] : (tensor<6xf32>) -> tensor<6x4x5xf32>
// CHECK: %[[C:.*]] = stablehlo.subtract %arg0, %[[W]] : tensor<6x4x5xf32>
// CHECK: return %[[C]]

// A tree of several leaves: two reshaped, one broadcast, one constant, and types that change on the way.
func.func public @tree(%x: tensor<8x6xf32>, %w: tensor<8x6xf32>, %y: tensor<3xf32>) -> tensor<8x6xf32> {
  %a = stablehlo.reshape %x : (tensor<8x6xf32>) -> tensor<8x2x3xf32>
  %e = stablehlo.reshape %w : (tensor<8x6xf32>) -> tensor<8x2x3xf32>
  %b = stablehlo.broadcast_in_dim %y, dims = [2] : (tensor<3xf32>) -> tensor<8x2x3xf32>
  %k = stablehlo.constant dense<2.0> : tensor<8x2x3xf32>
  %f = stablehlo.multiply %b, %k : tensor<8x2x3xf32>
  %p = stablehlo.compare GT, %a, %f : (tensor<8x2x3xf32>, tensor<8x2x3xf32>) -> tensor<8x2x3xi1>
  %s = stablehlo.select %p, %a, %e : tensor<8x2x3xi1>, tensor<8x2x3xf32>
  %d = stablehlo.reshape %s : (tensor<8x2x3xf32>) -> tensor<8x6xf32>
  return %d : tensor<8x6xf32>
}
// CHECK: @tree
// CHECK: %[[P:.*]] = stablehlo.compare GT, %arg0, {{.*}} : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xi1>
// CHECK: %[[S:.*]] = stablehlo.select %[[P]], %arg0, %arg1 : tensor<8x6xi1>, tensor<8x6xf32>
// CHECK: return %[[S]]

// The bounds of a clamp are scalars and stay so.
func.func public @clamp(%x: tensor<8x6xf32>, %low: tensor<f32>, %high: tensor<f32>) -> tensor<8x6xf32> {
  %a = stablehlo.reshape %x : (tensor<8x6xf32>) -> tensor<8x2x3xf32>
  %c = stablehlo.clamp %low, %a, %high : (tensor<f32>, tensor<8x2x3xf32>, tensor<f32>) -> tensor<8x2x3xf32>
  %d = stablehlo.reshape %c : (tensor<8x2x3xf32>) -> tensor<8x6xf32>
  return %d : tensor<8x6xf32>
}
// CHECK: @clamp
// CHECK: stablehlo.clamp %arg1, %arg0, %arg2 : (tensor<f32>, tensor<8x6xf32>, tensor<f32>) -> tensor<8x6xf32>
// CHECK-NOT: reshape

// A constant with different elements is laid out anew when compiling.
func.func public @constant(%x: tensor<6xf32>) -> tensor<6xf32> {
  %a = stablehlo.reshape %x : (tensor<6xf32>) -> tensor<2x3xf32>
  %k = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
  %c = stablehlo.multiply %a, %k : tensor<2x3xf32>
  %d = stablehlo.reshape %c : (tensor<2x3xf32>) -> tensor<6xf32>
  return %d : tensor<6xf32>
}
// CHECK: @constant
// CHECK: dense<[1.000000e+00, 2.000000e+00, 3.000000e+00, 4.000000e+00, 5.000000e+00, 6.000000e+00]> : tensor<6xf32>
// CHECK-NOT: reshape

// A reverse is not elementwise: the reshape stops above it.
func.func public @reverse(%x: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %a = stablehlo.reshape %x : (tensor<8x6xf32>) -> tensor<8x2x3xf32>
  %c = stablehlo.reverse %a, dims = [2] : tensor<8x2x3xf32>
  %d = stablehlo.reshape %c : (tensor<8x2x3xf32>) -> tensor<8x6xf32>
  return %d : tensor<8x6xf32>
}
// CHECK: @reverse
// CHECK: stablehlo.reshape %arg0 : (tensor<8x6xf32>) -> tensor<8x2x3xf32>
// CHECK: stablehlo.reverse

// Another leaf of the reshaped shape: the tree stays as it is.
func.func public @other_leaf(%x: tensor<8x6xf32>, %y: tensor<8x2x3xf32>) -> tensor<8x6xf32> {
  %a = stablehlo.reshape %x : (tensor<8x6xf32>) -> tensor<8x2x3xf32>
  %c = stablehlo.add %a, %y : tensor<8x2x3xf32>
  %d = stablehlo.reshape %c : (tensor<8x2x3xf32>) -> tensor<8x6xf32>
  return %d : tensor<8x6xf32>
}
// CHECK: @other_leaf
// CHECK: stablehlo.reshape %arg0
// CHECK: stablehlo.add {{.*}} : tensor<8x2x3xf32>

// Dynamic shapes are left alone.
func.func public @dynamic(%x: tensor<?x6xf32>) -> tensor<?x6xf32> {
  %a = stablehlo.negate %x : tensor<?x6xf32>
  return %a : tensor<?x6xf32>
}
// CHECK: @dynamic
// CHECK: stablehlo.negate %arg0 : tensor<?x6xf32>

// Pixels and groups in one dim: 40 is 4 * 5 * 2, so the small operand is repeated to the channels' size and no more.
func.func public @front(%x: tensor<4x5x6xf32>, %v: tensor<3xf32>) -> tensor<4x5x6xf32> {
  %y = stablehlo.reshape %x : (tensor<4x5x6xf32>) -> tensor<40x3xf32>
  %b = stablehlo.broadcast_in_dim %v, dims = [1] : (tensor<3xf32>) -> tensor<40x3xf32>
  %f = stablehlo.multiply %y, %b : tensor<40x3xf32>
  %z = stablehlo.reshape %f : (tensor<40x3xf32>) -> tensor<4x5x6xf32>
  return %z : tensor<4x5x6xf32>
}
// CHECK: @front
// CHECK: %[[W:.*]] = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
// CHECK: %[[R:.*]] = stablehlo.reshape %[[W]] : (tensor<2x3xf32>) -> tensor<6xf32>
// CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %[[R]], dims = [2]
// CHECK: stablehlo.multiply %arg0, %[[B]] : tensor<4x5x6xf32>
