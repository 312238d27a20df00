// The activations stay where they are; the weights' rows are shuffled the other way.
func.func public @shuffle(%x: tensor<5x6xf32>, %k: tensor<6x4xf32>) -> tensor<5x4xf32> {
  %0 = stablehlo.reshape %x : (tensor<5x6xf32>) -> tensor<5x2x3xf32>
  %1 = stablehlo.transpose %0, dims = [0, 2, 1] : (tensor<5x2x3xf32>) -> tensor<5x3x2xf32>
  %2 = stablehlo.reshape %1 : (tensor<5x3x2xf32>) -> tensor<5x6xf32>
  %3 = stablehlo.dot_general %2, %k, contracting_dims = [1] x [0] : (tensor<5x6xf32>, tensor<6x4xf32>) -> tensor<5x4xf32>
  return %3 : tensor<5x4xf32>
}
// CHECK: @shuffle
// CHECK: stablehlo.reshape %arg1 : (tensor<6x4xf32>) -> tensor<3x2x4xf32>
// CHECK: stablehlo.transpose
// CHECK: stablehlo.dot_general %arg0
