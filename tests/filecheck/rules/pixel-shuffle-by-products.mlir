// The columns of a pixel shuffle are interleaved by products; rows stay, so nothing is transposed into a thin last dim.
func.func public @wider(%x: tensor<5x2x3x20xf32>) -> tensor<5x3x40xf32> {
  %0 = stablehlo.transpose %x, dims = [0, 2, 3, 1] : (tensor<5x2x3x20xf32>) -> tensor<5x3x20x2xf32>
  %1 = stablehlo.reshape %0 : (tensor<5x3x20x2xf32>) -> tensor<5x3x40xf32>
  return %1 : tensor<5x3x40xf32>
}
// CHECK: @wider
// CHECK: %[[A:.*]] = stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<5x3x20xf32>, tensor<20x40xf32>) -> tensor<5x3x40xf32>
// CHECK: %[[B:.*]] = stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<5x3x20xf32>, tensor<20x40xf32>) -> tensor<5x3x40xf32>
// CHECK: %[[S:.*]] = stablehlo.add %[[A]], %[[B]] : tensor<5x3x40xf32>
// CHECK: return %[[S]]
