// PASSES: reduce-of-reshape,dead-code

// The patent's own case: H and W are reduced before the channels are split.
func.func public @patent(%x: tensor<8x32x32x256xf32>) -> tensor<8x32xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reshape %x : (tensor<8x32x32x256xf32>) -> tensor<8x32x32x8x32xf32>
  %z = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1, 2, 3] : (tensor<8x32x32x8x32xf32>, tensor<f32>) -> tensor<8x32xf32>
  return %z : tensor<8x32xf32>
}
// CHECK: @patent
// CHECK: %[[W:.*]] = stablehlo.reduce(%arg0 init: %[[ZERO:.*]]) applies stablehlo.add across dimensions = [1, 2] {{.*}} -> tensor<8x256xf32>
// CHECK: %[[Y:.*]] = stablehlo.reshape %[[W]] : (tensor<8x256xf32>) -> tensor<8x8x32xf32>
// CHECK: stablehlo.reduce(%[[Y]] init: %[[ZERO]]) applies stablehlo.add across dimensions = [1]
// CHECK-NOT: reshape

// An init known only at run time must count once: the first stage starts from -0.0, the identity of addition.
func.func public @runtime_init(%x: tensor<6x8xf32>, %init: tensor<f32>) -> tensor<2xf32> {
  %y = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
  %z = stablehlo.reduce(%y init: %init) applies stablehlo.add across dimensions = [1, 0] : (tensor<6x4x2xf32>, tensor<f32>) -> tensor<2xf32>
  return %z : tensor<2xf32>
}
// CHECK: @runtime_init
// CHECK: %[[ID:.*]] = stablehlo.constant dense<-0.000000e+00>
// CHECK: stablehlo.reduce(%arg0 init: %[[ID]]) applies stablehlo.add across dimensions = [0]
// CHECK: stablehlo.reduce({{.*}} init: %arg1) applies stablehlo.add across dimensions = [0]

// A narrow float would round between the stages: it is accumulated in f32.
func.func public @narrow(%x: tensor<6x8xbf16>) -> tensor<2xbf16> {
  %zero = stablehlo.constant dense<0.0> : tensor<bf16>
  %y = stablehlo.reshape %x : (tensor<6x8xbf16>) -> tensor<6x4x2xbf16>
  %z = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<6x4x2xbf16>, tensor<bf16>) -> tensor<2xbf16>
  return %z : tensor<2xbf16>
}
// CHECK: @narrow
// CHECK: stablehlo.convert %arg0 : (tensor<6x8xbf16>) -> tensor<6x8xf32>
// CHECK: tensor<2xf32>
// CHECK: stablehlo.convert {{.*}} : (tensor<2xf32>) -> tensor<2xbf16>

// Groups and the rest: 40 is 2 * 4 * 5, so H and W are reduced before the channels are split.
func.func public @rest(%x: tensor<3x6x4x5xf32>) -> tensor<3x3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reshape %x : (tensor<3x6x4x5xf32>) -> tensor<3x3x40xf32>
  %z = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<3x3x40xf32>, tensor<f32>) -> tensor<3x3xf32>
  return %z : tensor<3x3xf32>
}
// CHECK: @rest
// CHECK: %[[W:.*]] = stablehlo.reduce(%arg0 init: %[[ZERO:.*]]) applies stablehlo.add across dimensions = [2, 3] {{.*}} -> tensor<3x6xf32>
// CHECK: %[[Y:.*]] = stablehlo.reshape %[[W]] : (tensor<3x6xf32>) -> tensor<3x3x2xf32>
// CHECK: stablehlo.reduce(%[[Y]] init: %[[ZERO]]) applies stablehlo.add across dimensions = [2]
// CHECK-NOT: reshape

// Pixels and groups in one dim: 40 is 4 * 5 * 2, so H and W are reduced before the channels are split.
func.func public @front(%x: tensor<3x4x5x6xf32>) -> tensor<3x3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reshape %x : (tensor<3x4x5x6xf32>) -> tensor<3x40x3xf32>
  %z = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x40x3xf32>, tensor<f32>) -> tensor<3x3xf32>
  return %z : tensor<3x3xf32>
}
// CHECK: @front
// CHECK: %[[W:.*]] = stablehlo.reduce(%arg0 init: %[[ZERO:.*]]) applies stablehlo.add across dimensions = [1, 2] {{.*}} -> tensor<3x6xf32>
// CHECK: %[[Y:.*]] = stablehlo.reshape %[[W]] : (tensor<3x6xf32>) -> tensor<3x2x3xf32>
// CHECK: stablehlo.reduce(%[[Y]] init: %[[ZERO]]) applies stablehlo.add across dimensions = [1]
// CHECK-NOT: reshape

// No dim is free: 2 and 6 lie across 4 and 3.
func.func public @straddling(%x: tensor<2x6xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reshape %x : (tensor<2x6xf32>) -> tensor<3x4xf32>
  %z = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
  return %z : tensor<3xf32>
}
// CHECK: @straddling
// CHECK: stablehlo.reshape %arg0
// CHECK: stablehlo.reduce{{.*}}dimensions = [1]

// a - b is no monoid.
func.func public @not_a_monoid(%x: tensor<6x8xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
  %z = stablehlo.reduce(%y init: %zero) across dimensions = [0, 1] : (tensor<6x4x2xf32>, tensor<f32>) -> tensor<2xf32>
   reducer(%a: tensor<f32>, %b: tensor<f32>) {
    %d = stablehlo.subtract %a, %b : tensor<f32>
    stablehlo.return %d : tensor<f32>
  }
  return %z : tensor<2xf32>
}
// CHECK: @not_a_monoid
// CHECK: stablehlo.reshape %arg0 : (tensor<6x8xf32>) -> tensor<6x4x2xf32>

// A product of reals stays whole unless it is asked for: in another order it may overflow. One of integers wraps around.
func.func public @products(%x: tensor<6x8xf32>, %k: tensor<6x8xi32>) -> (tensor<2xf32>, tensor<2xi32>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %y = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
  %z = stablehlo.reduce(%y init: %one) applies stablehlo.multiply across dimensions = [0, 1] : (tensor<6x4x2xf32>, tensor<f32>) -> tensor<2xf32>
  %n = stablehlo.constant dense<1> : tensor<i32>
  %l = stablehlo.reshape %k : (tensor<6x8xi32>) -> tensor<6x4x2xi32>
  %m = stablehlo.reduce(%l init: %n) applies stablehlo.multiply across dimensions = [0, 1] : (tensor<6x4x2xi32>, tensor<i32>) -> tensor<2xi32>
  return %z, %m : tensor<2xf32>, tensor<2xi32>
}
// CHECK: @products
// CHECK: stablehlo.reshape %arg0
// CHECK: applies stablehlo.multiply across dimensions = [0, 1]
// CHECK: stablehlo.reduce(%arg1 init: {{.*}}) applies stablehlo.multiply across dimensions = [0]
