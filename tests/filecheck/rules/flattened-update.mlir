// Two arrays are flattened into a vector, updated there and taken apart: each is updated by itself, in its own shape.
func.func public @step(%a: tensor<4x3xf32>, %b: tensor<3xf32>, %c: tensor<4x3xf32>, %d: tensor<3xf32>) -> (tensor<4x3xf32>, tensor<3xf32>) {
  %rate = stablehlo.constant dense<1.000000e-01> : tensor<f32>
  %0 = stablehlo.reshape %a : (tensor<4x3xf32>) -> tensor<12xf32>
  %1 = stablehlo.concatenate %0, %b, dim = 0 : (tensor<12xf32>, tensor<3xf32>) -> tensor<15xf32>
  %2 = stablehlo.reshape %c : (tensor<4x3xf32>) -> tensor<12xf32>
  %3 = stablehlo.concatenate %2, %d, dim = 0 : (tensor<12xf32>, tensor<3xf32>) -> tensor<15xf32>
  %4 = stablehlo.broadcast_in_dim %rate, dims = [] : (tensor<f32>) -> tensor<15xf32>
  %5 = stablehlo.multiply %4, %3 : tensor<15xf32>
  %6 = stablehlo.subtract %1, %5 : tensor<15xf32>
  %7 = stablehlo.slice %6 [0:12] : (tensor<15xf32>) -> tensor<12xf32>
  %8 = stablehlo.reshape %7 : (tensor<12xf32>) -> tensor<4x3xf32>
  %9 = stablehlo.slice %6 [12:15] : (tensor<15xf32>) -> tensor<3xf32>
  return %8, %9 : tensor<4x3xf32>, tensor<3xf32>
}
// CHECK: @step
// CHECK: %[[R:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
// CHECK: %[[M:.*]] = stablehlo.multiply %[[R]], %arg2 : tensor<4x3xf32>
// CHECK: %[[W:.*]] = stablehlo.subtract %arg0, %[[M]] : tensor<4x3xf32>
// CHECK: %[[N:.*]] = stablehlo.multiply %{{.*}}, %arg3 : tensor<3xf32>
// CHECK: %[[V:.*]] = stablehlo.subtract %arg1, %[[N]] : tensor<3xf32>
// CHECK: return %[[W]], %[[V]]
