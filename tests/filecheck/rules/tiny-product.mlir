// Both sides have the terms first: they are turned, spread over rows, terms and columns, and summed up in f32.
func.func public @gram(%a: tensor<7x3x4xbf16>, %b: tensor<7x3x2xbf16>) -> tensor<7x4x2xbf16> {
  %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [1] x [1] : (tensor<7x3x4xbf16>, tensor<7x3x2xbf16>) -> tensor<7x4x2xbf16>
  return %0 : tensor<7x4x2xbf16>
}
// CHECK: @gram
// CHECK: %[[A:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [0, 1, 2] : (tensor<7x4x3xf32>) -> tensor<7x4x3x2xf32>
// CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [0, 2, 3] : (tensor<7x3x2xf32>) -> tensor<7x4x3x2xf32>
// CHECK: stablehlo.multiply %[[A]], %[[B]]
// CHECK: stablehlo.reduce
// CHECK-SAME: dimensions = [2]
// CHECK: stablehlo.convert
