// Each part meets its own rows of the weights.
func.func public @parts(%x: tensor<3x5xf32>, %y: tensor<3x2xf32>, %w: tensor<7x4xf32>) -> tensor<3x4xf32> {
  %0 = stablehlo.concatenate %x, %y, dim = 1 : (tensor<3x5xf32>, tensor<3x2xf32>) -> tensor<3x7xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<3x7xf32>, tensor<7x4xf32>) -> tensor<3x4xf32>
  return %1 : tensor<3x4xf32>
}
// CHECK: @parts
// CHECK: %[[A:.*]] = stablehlo.slice %arg2 [0:5, 0:4]
// CHECK: %[[B:.*]] = stablehlo.dot_general %arg0, %[[A]]
// CHECK: %[[C:.*]] = stablehlo.slice %arg2 [5:7, 0:4]
// CHECK: %[[D:.*]] = stablehlo.dot_general %arg1, %[[C]]
// CHECK: stablehlo.add %[[B]], %[[D]]

// What is repeated over a free dim is multiplied once, and the product is repeated.
func.func public @repeated(%x: tensor<2x3x5xf32>, %y: tensor<2x2xf32>, %w: tensor<7x4xf32>) -> tensor<2x3x4xf32> {
  %0 = stablehlo.broadcast_in_dim %y, dims = [0, 2] : (tensor<2x2xf32>) -> tensor<2x3x2xf32>
  %1 = stablehlo.concatenate %x, %0, dim = 2 : (tensor<2x3x5xf32>, tensor<2x3x2xf32>) -> tensor<2x3x7xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [2] x [0] : (tensor<2x3x7xf32>, tensor<7x4xf32>) -> tensor<2x3x4xf32>
  return %2 : tensor<2x3x4xf32>
}
// CHECK: @repeated
// CHECK: %[[P:.*]] = stablehlo.dot_general %arg1, {{.*}} -> tensor<2x4xf32>
// CHECK: stablehlo.broadcast_in_dim %[[P]], dims = [0, 2] : (tensor<2x4xf32>) -> tensor<2x3x4xf32>
