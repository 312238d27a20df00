// What a one-hot row picks of x - row is what it picks of x, minus the row; a label out of range picks nothing.
func.func public @loss(%x: tensor<4x7xf32>, %row: tensor<4xf32>, %i: tensor<4xi32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %row, dims = [0] : (tensor<4xf32>) -> tensor<4x7xf32>
  %1 = stablehlo.subtract %x, %0 : tensor<4x7xf32>
  %2 = stablehlo.iota dim = 1 : tensor<4x7xi32>
  %3 = stablehlo.broadcast_in_dim %i, dims = [0] : (tensor<4xi32>) -> tensor<4x7xi32>
  %4 = stablehlo.compare EQ, %3, %2 : (tensor<4x7xi32>, tensor<4x7xi32>) -> tensor<4x7xi1>
  %5 = stablehlo.convert %4 : (tensor<4x7xi1>) -> tensor<4x7xf32>
  %6 = stablehlo.multiply %1, %5 : tensor<4x7xf32>
  %7 = stablehlo.reduce(%6 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x7xf32>, tensor<f32>) -> tensor<4xf32>
  return %7 : tensor<4xf32>
}
// CHECK: @loss
// CHECK: %[[KEPT:.*]] = stablehlo.select %{{.*}}, %arg0
// CHECK: %[[SUM:.*]] = stablehlo.reduce(%[[KEPT]]
// CHECK: %[[PICKED:.*]] = stablehlo.subtract %[[SUM]], %arg1
// CHECK: stablehlo.compare GE
// CHECK: stablehlo.select %{{.*}}, %[[PICKED]]
// CHECK-NOT: multiply
