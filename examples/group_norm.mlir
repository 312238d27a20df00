// Group normalisation of f32[8,32,32,256] in 32 groups, as jax.jit(group_norm).lower(...) writes it.
module @jit_group_norm {
  func.func public @main(%arg0: tensor<8x32x32x256xf32>, %arg1: tensor<256xf32>, %arg2: tensor<256xf32>) -> (tensor<8x32x32x256xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.reshape %arg0 : (tensor<8x32x32x256xf32>) -> tensor<8x32x32x32x8xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1, 2, 4] : (tensor<8x32x32x32x8xf32>, tensor<f32>) -> tensor<8x32xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 3] : (tensor<8x32xf32>) -> tensor<8x1x1x32x1xf32>
    %cst_0 = stablehlo.constant dense<8.192000e+03> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x1x1x32x1xf32>
    %4 = stablehlo.divide %2, %3 : tensor<8x1x1x32x1xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1, 2, 3, 4] : (tensor<8x1x1x32x1xf32>) -> tensor<8x32x32x32x8xf32>
    %6 = stablehlo.subtract %0, %5 : tensor<8x32x32x32x8xf32>
    %7 = stablehlo.multiply %6, %6 : tensor<8x32x32x32x8xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.add across dimensions = [1, 2, 4] : (tensor<8x32x32x32x8xf32>, tensor<f32>) -> tensor<8x32xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 3] : (tensor<8x32xf32>) -> tensor<8x1x1x32x1xf32>
    %cst_2 = stablehlo.constant dense<8.192000e+03> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<8x1x1x32x1xf32>
    %11 = stablehlo.divide %9, %10 : tensor<8x1x1x32x1xf32>
    %cst_3 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<8x1x1x32x1xf32>
    %13 = stablehlo.add %11, %12 : tensor<8x1x1x32x1xf32>
    %14 = stablehlo.rsqrt %13 : tensor<8x1x1x32x1xf32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1, 2, 3, 4] : (tensor<8x1x1x32x1xf32>) -> tensor<8x32x32x32x8xf32>
    %16 = stablehlo.multiply %6, %15 : tensor<8x32x32x32x8xf32>
    %17 = stablehlo.reshape %16 : (tensor<8x32x32x32x8xf32>) -> tensor<8x32x32x256xf32>
    %18 = stablehlo.broadcast_in_dim %arg1, dims = [3] : (tensor<256xf32>) -> tensor<1x1x1x256xf32>
    %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 2, 3] : (tensor<1x1x1x256xf32>) -> tensor<8x32x32x256xf32>
    %20 = stablehlo.multiply %17, %19 : tensor<8x32x32x256xf32>
    %21 = stablehlo.broadcast_in_dim %arg2, dims = [3] : (tensor<256xf32>) -> tensor<1x1x1x256xf32>
    %22 = stablehlo.broadcast_in_dim %21, dims = [0, 1, 2, 3] : (tensor<1x1x1x256xf32>) -> tensor<8x32x32x256xf32>
    %23 = stablehlo.add %20, %22 : tensor<8x32x32x256xf32>
    return %23 : tensor<8x32x32x256xf32>
  }
}
