// Four shifts, in the order of the concatenation: the weights are put in the window's order.
func.func public @merge(%x: tensor<2x4x4x2xf32>, %k: tensor<8x3xf32>) -> tensor<2x2x2x3xf32> {
  %0 = stablehlo.slice %x [0:2, 0:4:2, 0:4:2, 0:2] : (tensor<2x4x4x2xf32>) -> tensor<2x2x2x2xf32>
  %1 = stablehlo.slice %x [0:2, 0:4:2, 1:4:2, 0:2] : (tensor<2x4x4x2xf32>) -> tensor<2x2x2x2xf32>
  %2 = stablehlo.slice %x [0:2, 1:4:2, 0:4:2, 0:2] : (tensor<2x4x4x2xf32>) -> tensor<2x2x2x2xf32>
  %3 = stablehlo.slice %x [0:2, 1:4:2, 1:4:2, 0:2] : (tensor<2x4x4x2xf32>) -> tensor<2x2x2x2xf32>
  %4 = stablehlo.concatenate %0, %1, %2, %3, dim = 3 : (tensor<2x2x2x2xf32>, tensor<2x2x2x2xf32>, tensor<2x2x2x2xf32>, tensor<2x2x2x2xf32>) -> tensor<2x2x2x8xf32>
  %5 = stablehlo.dot_general %4, %k, contracting_dims = [3] x [0] : (tensor<2x2x2x8xf32>, tensor<8x3xf32>) -> tensor<2x2x2x3xf32>
  return %5 : tensor<2x2x2x3xf32>
}
// CHECK: @merge
// CHECK: %[[K:.*]] = stablehlo.reshape %arg1 : (tensor<8x3xf32>) -> tensor<2x2x2x3xf32>
// CHECK: stablehlo.convolution(%arg0, %[[K]]) {{.*}} window = {stride = [2, 2]
// CHECK-NOT: concatenate
