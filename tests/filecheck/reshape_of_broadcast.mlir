// PASSES: reshape-of-broadcast,dead-code

func.func public @small(%y: tensor<8x32xf32>) -> tensor<8x9x9x256xf32> {
  %b = stablehlo.broadcast_in_dim %y, dims = [0, 3] : (tensor<8x32xf32>) -> tensor<8x9x9x32x8xf32>
  %r = stablehlo.reshape %b : (tensor<8x9x9x32x8xf32>) -> tensor<8x9x9x256xf32>
  return %r : tensor<8x9x9x256xf32>
}
// CHECK: @small
// CHECK: %[[A:.*]] = stablehlo.broadcast_in_dim %arg0, dims = [0, 1] : (tensor<8x32xf32>) -> tensor<8x32x8xf32>
// CHECK: %[[B:.*]] = stablehlo.reshape %[[A]] : (tensor<8x32x8xf32>) -> tensor<8x256xf32>
// CHECK: stablehlo.broadcast_in_dim %[[B]], dims = [0, 3] : (tensor<8x256xf32>) -> tensor<8x9x9x256xf32>

// A statistic of groups, spread over the rest: it becomes one of channels.
func.func public @rest(%y: tensor<3x3xf32>) -> tensor<3x6x4x5xf32> {
  %b = stablehlo.broadcast_in_dim %y, dims = [0, 1] : (tensor<3x3xf32>) -> tensor<3x3x40xf32>
  %r = stablehlo.reshape %b : (tensor<3x3x40xf32>) -> tensor<3x6x4x5xf32>
  return %r : tensor<3x6x4x5xf32>
}
// CHECK: @rest
// CHECK: %[[A:.*]] = stablehlo.broadcast_in_dim %arg0, dims = [0, 1] : (tensor<3x3xf32>) -> tensor<3x3x2xf32>
// CHECK: %[[B:.*]] = stablehlo.reshape %[[A]] : (tensor<3x3x2xf32>) -> tensor<3x6xf32>
// CHECK: stablehlo.broadcast_in_dim %[[B]], dims = [0, 1] : (tensor<3x6xf32>) -> tensor<3x6x4x5xf32>

// A hidden transpose: the dims are unsorted.
func.func public @unsorted(%y: tensor<3x8xf32>) -> tensor<8x5x6xf32> {
  %b = stablehlo.broadcast_in_dim %y, dims = [2, 0] : (tensor<3x8xf32>) -> tensor<8x5x3x2xf32>
  %r = stablehlo.reshape %b : (tensor<8x5x3x2xf32>) -> tensor<8x5x6xf32>
  return %r : tensor<8x5x6xf32>
}
// CHECK: @unsorted
// CHECK: stablehlo.transpose %arg0, dims = [1, 0] : (tensor<3x8xf32>) -> tensor<8x3xf32>
// CHECK: stablehlo.broadcast_in_dim {{.*}} -> tensor<8x5x6xf32>

// Every dim comes from the operand: nothing would be smaller.
func.func public @all_there(%y: tensor<8x6xf32>) -> tensor<48x5xf32> {
  %b = stablehlo.broadcast_in_dim %y, dims = [0, 1] : (tensor<8x6xf32>) -> tensor<8x6x5xf32>
  %r = stablehlo.reshape %b : (tensor<8x6x5xf32>) -> tensor<240xf32>
  %s = stablehlo.reshape %r : (tensor<240xf32>) -> tensor<48x5xf32>
  return %s : tensor<48x5xf32>
}
// CHECK: @all_there
// CHECK: stablehlo.reshape {{.*}} : (tensor<8x6x5xf32>) -> tensor<240xf32>

// An iota is the broadcast of a vector.
func.func public @iota() -> tensor<6x4x2xi32> {
  %i = stablehlo.iota dim = 0 : tensor<6x8xi32>
  %r = stablehlo.reshape %i : (tensor<6x8xi32>) -> tensor<6x4x2xi32>
  return %r : tensor<6x4x2xi32>
}
// CHECK: @iota
// CHECK: %[[I:.*]] = stablehlo.iota dim = 0 : tensor<6xi32>
// CHECK: stablehlo.broadcast_in_dim %[[I]], dims = [0] : (tensor<6xi32>) -> tensor<6x4x2xi32>
