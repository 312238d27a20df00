func.func public @skip(%x: tensor<2x4x4x3xf32>, %y: tensor<2x4x4x2xf32>, %w: tensor<1x1x5x6xf32>) -> tensor<2x4x4x6xf32> {
  %0 = stablehlo.concatenate %x, %y, dim = 3 : (tensor<2x4x4x3xf32>, tensor<2x4x4x2xf32>) -> tensor<2x4x4x5xf32>
  %1 = stablehlo.convolution(%0, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x4x4x5xf32>, tensor<1x1x5x6xf32>) -> tensor<2x4x4x6xf32>
  return %1 : tensor<2x4x4x6xf32>
}
// CHECK: @skip
// CHECK: %[[U:.*]] = stablehlo.slice %arg2 [0:1, 0:1, 0:3, 0:6]
// CHECK: %[[A:.*]] = stablehlo.convolution(%arg0, %[[U]])
// CHECK: %[[V:.*]] = stablehlo.slice %arg2 [0:1, 0:1, 3:5, 0:6]
// CHECK: %[[B:.*]] = stablehlo.convolution(%arg1, %[[V]])
// CHECK: stablehlo.add %[[A]], %[[B]]
