// PASSES: reduce-of-transpose,dead-code

// What is kept comes out in another order: only that is transposed.
func.func public @kept_swapped(%x: tensor<4x5x6xi32>) -> tensor<6x4xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %t = stablehlo.transpose %x, dims = [2, 1, 0] : (tensor<4x5x6xi32>) -> tensor<6x5x4xi32>
  %z = stablehlo.reduce(%t init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<6x5x4xi32>, tensor<i32>) -> tensor<6x4xi32>
  return %z : tensor<6x4xi32>
}
// CHECK: @kept_swapped
// CHECK: %[[R:.*]] = stablehlo.reduce(%arg0 init: {{.*}} across dimensions = [1] {{.*}} -> tensor<4x6xi32>
// CHECK: stablehlo.transpose %[[R]], dims = [1, 0] : (tensor<4x6xi32>) -> tensor<6x4xi32>
