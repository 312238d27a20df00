// PASSES: reduce-of-reshape,reduce-of-splits,dead-code

// A pooling of 2 x 2: rows are split and summed first, columns afterwards.
func.func public @pooling(%x: tensor<2x4x6x3xf32>) -> tensor<2x2x3x3xf32> {
  %zero = stablehlo.constant dense<-0.0> : tensor<f32>
  %y = stablehlo.reshape %x : (tensor<2x4x6x3xf32>) -> tensor<2x2x2x3x2x3xf32>
  %z = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [2, 4] : (tensor<2x2x2x3x2x3xf32>, tensor<f32>) -> tensor<2x2x3x3xf32>
  return %z : tensor<2x2x3x3xf32>
}
// CHECK: @pooling
// CHECK: %[[ROWS:.*]] = stablehlo.reshape %arg0 : (tensor<2x4x6x3xf32>) -> tensor<2x2x2x6x3xf32>
// CHECK: %[[SUMS:.*]] = stablehlo.reduce(%[[ROWS]] init: %[[ZERO:.*]]) applies stablehlo.add across dimensions = [2]
// CHECK: %[[COLUMNS:.*]] = stablehlo.reshape %[[SUMS]] : (tensor<2x2x6x3xf32>) -> tensor<2x2x3x2x3xf32>
// CHECK: stablehlo.reduce(%[[COLUMNS]] init: %[[ZERO]]) applies stablehlo.add across dimensions = [3]
// CHECK-NOT: reshape

// An init known only at run time must count once, and a narrow float is accumulated in f32.
func.func public @narrow(%x: tensor<4x6xbf16>, %init: tensor<bf16>) -> tensor<2x3xbf16> {
  %y = stablehlo.reshape %x : (tensor<4x6xbf16>) -> tensor<2x2x3x2xbf16>
  %z = stablehlo.reduce(%y init: %init) applies stablehlo.add across dimensions = [1, 3] : (tensor<2x2x3x2xbf16>, tensor<bf16>) -> tensor<2x3xbf16>
  return %z : tensor<2x3xbf16>
}
// CHECK: @narrow
// CHECK: %[[ID:.*]] = stablehlo.constant dense<-0.000000e+00> : tensor<f32>
// CHECK: %[[INIT:.*]] = stablehlo.convert %arg1 : (tensor<bf16>) -> tensor<f32>
// CHECK: stablehlo.reduce({{.*}} init: %[[ID]]) applies stablehlo.add across dimensions = [1]
// CHECK: stablehlo.reduce({{.*}} init: %[[INIT]]) applies stablehlo.add across dimensions = [2]
// CHECK: stablehlo.convert {{.*}} : (tensor<2x3xf32>) -> tensor<2x3xbf16>

// One split only: nothing is gained by an order.
func.func public @one(%x: tensor<4x6xf32>) -> tensor<4x3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reshape %x : (tensor<4x6xf32>) -> tensor<4x3x2xf32>
  %z = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<4x3x2xf32>, tensor<f32>) -> tensor<4x3xf32>
  return %z : tensor<4x3xf32>
}
// CHECK: @one
// CHECK: stablehlo.reshape %arg0 : (tensor<4x6xf32>) -> tensor<4x3x2xf32>
// CHECK: stablehlo.reduce{{.*}}dimensions = [2]
