// PASSES: canonicalize,reduces-of-reshapes,dead-code

// An argmax over rows, in groups of columns: values and indices move together, and the iota moves nothing.
func.func public @argmax(%x: tensor<8x32xf32>) -> tensor<4x8xi32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %y = stablehlo.reshape %x : (tensor<8x32xf32>) -> tensor<8x4x8xf32>
  %i = stablehlo.iota dim = 0 : tensor<8x4x8xi32>
  %z:2 = stablehlo.reduce(%y init: %low), (%i init: %zero) across dimensions = [0] : (tensor<8x4x8xf32>, tensor<8x4x8xi32>, tensor<f32>, tensor<i32>) -> (tensor<4x8xf32>, tensor<4x8xi32>)
   reducer(%a: tensor<f32>, %c: tensor<f32>) (%b: tensor<i32>, %d: tensor<i32>)  {
    %0 = stablehlo.compare GT, %a, %c, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %1 = stablehlo.compare NE, %a, %a, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %2 = stablehlo.or %0, %1 : tensor<i1>
    %3 = stablehlo.compare EQ, %a, %c, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %4 = stablehlo.compare LT, %b, %d, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %5 = stablehlo.and %3, %4 : tensor<i1>
    %6 = stablehlo.or %2, %5 : tensor<i1>
    %7 = stablehlo.select %2, %a, %c : tensor<i1>, tensor<f32>
    %8 = stablehlo.select %6, %b, %d : tensor<i1>, tensor<i32>
    stablehlo.return %7, %8 : tensor<f32>, tensor<i32>
  }
  return %z#1 : tensor<4x8xi32>
}
// CHECK: @argmax
// CHECK: %[[I:.*]] = stablehlo.iota dim = 0 : tensor<8xi32>
// CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %[[I]], dims = [0] : (tensor<8xi32>) -> tensor<8x32xi32>
// CHECK: stablehlo.reduce(%arg0 init: {{.*}}), (%[[B]] init: {{.*}}) across dimensions = [0]
// CHECK: stablehlo.reshape {{.*}} : (tensor<32xi32>) -> tensor<4x8xi32>

// A sum and a maximum at once, in two stages each; the run-time init of the sum counts once.
func.func public @moments(%x: tensor<6x8xi32>, %s: tensor<i32>) -> (tensor<2xi32>, tensor<2xi32>) {
  %low = stablehlo.constant dense<-2147483648> : tensor<i32>
  %y = stablehlo.reshape %x : (tensor<6x8xi32>) -> tensor<6x4x2xi32>
  %q = stablehlo.multiply %y, %y : tensor<6x4x2xi32>
  %z:2 = stablehlo.reduce(%q init: %s), (%y init: %low) across dimensions = [1, 0] : (tensor<6x4x2xi32>, tensor<6x4x2xi32>, tensor<i32>, tensor<i32>) -> (tensor<2xi32>, tensor<2xi32>)
   reducer(%a: tensor<i32>, %c: tensor<i32>) (%b: tensor<i32>, %d: tensor<i32>)  {
    %0 = stablehlo.add %a, %c : tensor<i32>
    %1 = stablehlo.maximum %b, %d : tensor<i32>
    stablehlo.return %0, %1 : tensor<i32>, tensor<i32>
  }
  return %z#0, %z#1 : tensor<2xi32>, tensor<2xi32>
}
// CHECK: @moments
// CHECK: %[[ID:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK: %[[A:.*]]:2 = stablehlo.reduce({{.*}} init: %[[ID]]), (%arg0 init: %[[LOW:.*]]) across dimensions = [0]
// CHECK: stablehlo.reduce({{.*}} init: %arg1), ({{.*}} init: %[[LOW]]) across dimensions = [0]
