// PASSES: canonicalize,reshape-of-broadcast,reshape-of-dynamic-slice,reshape-of-loop,dead-code

// A carried array is carried as it was: the reshapes meet their inverses inside the body and behind the loop.
func.func public @carried(%x: tensor<9x32xf32>, %n: tensor<i32>) -> tensor<9x32xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %y = stablehlo.reshape %x : (tensor<9x32xf32>) -> tensor<9x4x8xf32>
  %r:2 = stablehlo.while(%i = %zero, %a = %y) : tensor<i32>, tensor<9x4x8xf32>
   cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %b = stablehlo.reshape %a : (tensor<9x4x8xf32>) -> tensor<9x32xf32>
    %s = stablehlo.sine %b : tensor<9x32xf32>
    %t = stablehlo.reshape %s : (tensor<9x32xf32>) -> tensor<9x4x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %t : tensor<i32>, tensor<9x4x8xf32>
  }
  %z = stablehlo.reshape %r#1 : (tensor<9x4x8xf32>) -> tensor<9x32xf32>
  return %z : tensor<9x32xf32>
}
// CHECK: @carried
// CHECK: stablehlo.while({{.*}} = {{.*}}, %[[A:.*]] = %arg0) : tensor<i32>, tensor<9x32xf32>
// CHECK: %[[S:.*]] = stablehlo.sine %[[A]] : tensor<9x32xf32>
// CHECK: stablehlo.return {{.*}}, %[[S]] : tensor<i32>, tensor<9x32xf32>
// CHECK-NOT: reshape

// The stack of a scan: its rows are stacked as they were before the reshape.
func.func public @stacked(%x: tensor<9x32xf32>, %n: tensor<i32>) -> tensor<5x9x32xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<5x9x4x8xf32>
  %r:2 = stablehlo.while(%i = %zero, %a = %y) : tensor<i32>, tensor<5x9x4x8xf32>
   cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %b = stablehlo.reshape %x : (tensor<9x32xf32>) -> tensor<9x4x8xf32>
    %t = stablehlo.broadcast_in_dim %b, dims = [1, 2, 3] : (tensor<9x4x8xf32>) -> tensor<1x9x4x8xf32>
    %u = stablehlo.dynamic_update_slice %a, %t, %i, %zero, %zero, %zero : (tensor<5x9x4x8xf32>, tensor<1x9x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<5x9x4x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %u : tensor<i32>, tensor<5x9x4x8xf32>
  }
  %z = stablehlo.reshape %r#1 : (tensor<5x9x4x8xf32>) -> tensor<5x9x32xf32>
  return %z : tensor<5x9x32xf32>
}
// CHECK: @stacked
// CHECK: stablehlo.broadcast_in_dim {{.*}} -> tensor<5x9x32xf32>
// CHECK: %[[R:.*]] = stablehlo.reshape %arg0 : (tensor<9x32xf32>) -> tensor<1x9x32xf32>
// CHECK: stablehlo.dynamic_update_slice {{.*}}, %[[R]], {{.*}} -> tensor<5x9x32xf32>
// CHECK-NOT: reshape
