// Four strided slices, in the order of the block.
func.func public @blocks(%x: tensor<2x4x6x3xf32>) -> tensor<2x2x3x12xf32> {
  %0 = stablehlo.reshape %x : (tensor<2x4x6x3xf32>) -> tensor<2x2x2x3x2x3xf32>
  %1 = stablehlo.transpose %0, dims = [0, 1, 3, 2, 4, 5] : (tensor<2x2x2x3x2x3xf32>) -> tensor<2x2x3x2x2x3xf32>
  %2 = stablehlo.reshape %1 : (tensor<2x2x3x2x2x3xf32>) -> tensor<2x2x3x12xf32>
  return %2 : tensor<2x2x3x12xf32>
}
// CHECK: @blocks
// CHECK: %[[A:.*]] = stablehlo.slice %arg0 [0:2, 0:4:2, 0:6:2, 0:3]
// CHECK: %[[B:.*]] = stablehlo.slice %arg0 [0:2, 0:4:2, 1:6:2, 0:3]
// CHECK: %[[C:.*]] = stablehlo.slice %arg0 [0:2, 1:4:2, 0:6:2, 0:3]
// CHECK: %[[D:.*]] = stablehlo.slice %arg0 [0:2, 1:4:2, 1:6:2, 0:3]
// CHECK: stablehlo.concatenate %[[A]], %[[B]], %[[C]], %[[D]], dim = 3
