#loc = loc(unknown)
#loc1 = loc("in")
module @two_groups attributes {module.FLOPs = 0 : i64, module.addr_mode = "basic", module.asymmetric = false, module.chip = "bm1684x", module.cores = 1 : i64, module.devices = 1 : i64, module.mode = "F16", module.platform = "ONNX", module.state = "TPU_ADDRESSED", module.weight_file = "two_groups_weight.npz"} {
  module @two_groups attributes {module.coeff_addr = 4294967296 : i64, module.coeff_size = 77824 : i64, module.device_id = 0 : i64, module.neuron_addr = 4295045120 : i64, module.neuron_size = 401408 : i64, module.step = 0 : i64} {
    func.func @main(%arg0: tensor<1x64x56x56xf32> loc(unknown)) -> tensor<1x64x56x56xf32, 4295446528 : i64> {
      %0 = "top.Input"(%arg0) {do_preprocess = false} : (tensor<1x64x56x56xf32>) -> tensor<1x64x56x56xf32, 4295045120 : i64> loc(#loc1)
      %1 = call @subfunc_0(%0) : (tensor<1x64x56x56xf32, 4295045120 : i64>) -> tensor<1x64x56x56xf32, 4295446528 : i64> loc(#loc)
      return %1 : tensor<1x64x56x56xf32, 4295446528 : i64> loc(#loc)
    } loc(#loc)
    func.func @subfunc_0(%arg0: tensor<1x64x56x56xf32, 4295045120 : i64> loc("in")) -> tensor<1x64x56x56xf32, 4295446528 : i64> attributes {id = 0 : i64, mode = #tpu<run_mode TPU_STATIC>, next_index = array<i32: -1>} {
      %0 = "top.None"() : () -> none loc(#loc)
      %1 = "top.Weight"() {do_compress = false} : () -> tensor<1x64x1x576xf16, 4294967296 : i64> loc(#loc2)
      %2 = "top.Weight"() {do_compress = false} : () -> tensor<1x64x1x1xf32, 4295041024 : i64> loc(#loc3)
      %3 = "tpu.Cast"(%arg0) {with_scale = true} : (tensor<1x64x56x56xf32, 4295045120 : i64>) -> tensor<1x64x56x56xf16, 4295446528 : i64> loc(#loc4)
      %4 = "tpu.Group"(%3, %1, %2) ({
        %6 = "tpu.Load"(%3) {do_bcast = false, ginfo = #tpu.lg<out_addr = 0, out_size = 3264, buffer_addr = 0, buffer_size = 0, eu_align = true, n_idx = [0], n_slice = [1], c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], h_idx = [0, 27], h_slice = [29, 29], w_idx = [0], w_slice = [56], id = 0, stage = 0, group_type = 0>, lmem_type = 1 : i64, use_3ic_optimize = 0 : i64} : (tensor<1x64x56x56xf16, 4295446528 : i64>) -> tensor<1x64x56x56xf16> loc(#loc5)
        %7 = "tpu.Load"(%1) {do_bcast = false, ginfo = #tpu.lg<out_addr = 16384, out_size = 1152, buffer_addr = 0, buffer_size = 0, eu_align = false, n_idx = [0], n_slice = [1], c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], h_idx = [0], h_slice = [1], w_idx = [0], w_slice = [576], id = 1, stage = 0, group_type = 0>, lmem_type = 0 : i64, use_3ic_optimize = 0 : i64} : (tensor<1x64x1x576xf16, 4294967296 : i64>) -> tensor<1x64x1x576xf16> loc(#loc2)
        %8 = "tpu.Load"(%2) {do_bcast = false, ginfo = #tpu.lg<out_addr = 17536, out_size = 4, buffer_addr = 0, buffer_size = 0, eu_align = false, n_idx = [0], n_slice = [1], c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], h_idx = [0], h_slice = [1], w_idx = [0], w_slice = [1], id = 2, stage = 0, group_type = 0>, lmem_type = 0 : i64, use_3ic_optimize = 0 : i64} : (tensor<1x64x1x1xf32, 4295041024 : i64>) -> tensor<1x64x1x1xf32> loc(#loc3)
        %9 = "tpu.Conv2D"(%6, %7, %8) {coeff_merged = false, ginfo = #tpu.lg<out_addr = 32768, out_size = 3136, buffer_addr = 49152, buffer_size = 2048, eu_align = true, n_idx = [0], n_slice = [1], c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], h_idx = [0, 28], h_slice = [28, 28], w_idx = [0], w_slice = [56], id = 3, stage = 1, group_type = 0>, group = 1 : i64, kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [1, 1], with_bias = true} : (tensor<1x64x56x56xf16>, tensor<1x64x1x576xf16>, tensor<1x64x1x1xf32>) -> tensor<1x64x56x56xf16> loc(#loc6)
        %10 = "tpu.Store"(%9, %0) {ginfo = #tpu.lg<out_addr = 0, out_size = 0, buffer_addr = 0, buffer_size = 0, eu_align = true, n_idx = [0], n_slice = [1], h_idx = [0, 28], h_slice = [28, 28], id = 4, stage = 2, group_type = 0>} : (tensor<1x64x56x56xf16>, none) -> tensor<1x64x56x56xf16, 4294967296 : i64> loc(#loc6)
        "tpu.Yield"(%10) : (tensor<1x64x56x56xf16, 4294967296 : i64>) -> () loc(#loc6)
      }) {core_slice_ncdhw = [], csecs = 1 : i64, dsecs = 1 : i64, flow = [0, 1, 2, 3, -1], group_type = 0 : i64, hsecs = 2 : i64, nsecs = 1 : i64, other_down_overlap_op = [], other_up_overlap_op = [], self_down_overlap_op = [], self_up_overlap_op = [], swpipl_stage_num = 3 : i64, wsecs = 1 : i64} : (tensor<1x64x56x56xf16, 4295446528 : i64>, tensor<1x64x1x576xf16, 4294967296 : i64>, tensor<1x64x1x1xf32, 4295041024 : i64>) -> tensor<1x64x56x56xf16, 4294967296 : i64> loc(#loc6)
      %5:2 = "tpu.Group"(%4) ({
        %12 = "tpu.Load"(%4) {do_bcast = false, ginfo = #tpu.lg<out_addr = 0, out_size = 6272, buffer_addr = 0, buffer_size = 0, eu_align = true, n_idx = [0], n_slice = [1], c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], h_idx = [0], h_slice = [56], w_idx = [0], w_slice = [56], id = 0, stage = 0, group_type = 0>, lmem_type = 1 : i64} : (tensor<1x64x56x56xf16, 4294967296 : i64>) -> tensor<1x64x56x56xf16> loc(#loc7)
        %13 = "tpu.Active"(%12) {ginfo = #tpu.lg<out_addr = 8192, out_size = 6272, buffer_addr = 0, buffer_size = 0, eu_align = true, n_idx = [0], n_slice = [1], c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], h_idx = [0], h_slice = [56], w_idx = [0], w_slice = [56], id = 1, stage = 1, group_type = 0>, mode = #tpu<active_mode SILU>} : (tensor<1x64x56x56xf16>) -> tensor<1x64x56x56xf16> loc(#loc8)
        %14 = "tpu.Cast"(%13) {ginfo = #tpu.lg<out_addr = 16384, out_size = 12544, buffer_addr = 0, buffer_size = 0, eu_align = true, n_idx = [0], n_slice = [1], c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], h_idx = [0], h_slice = [56], w_idx = [0], w_slice = [56], id = 2, stage = 1, group_type = 0>, with_scale = true} : (tensor<1x64x56x56xf16>) -> tensor<1x64x56x56xf32> loc(#loc9)
        %15 = "tpu.Store"(%14, %0) {ginfo = #tpu.lg<out_addr = 0, out_size = 0, buffer_addr = 0, buffer_size = 0, eu_align = true, n_idx = [0], n_slice = [1], h_idx = [0], h_slice = [56], id = 3, stage = 2, group_type = 0>} : (tensor<1x64x56x56xf32>, none) -> tensor<1x64x56x56xf32, 4295446528 : i64> loc(#loc9)
        "tpu.Yield"(%15) : (tensor<1x64x56x56xf32, 4295446528 : i64>) -> () loc(#loc9)
      }) {flow = [0, 1, 2, -1], group_type = 0 : i64, hsecs = 1 : i64, nsecs = 1 : i64, swpipl_stage_num = 3 : i64} : (tensor<1x64x56x56xf16, 4294967296 : i64>) -> tensor<1x64x56x56xf32, 4295446528 : i64> loc(#loc9)
      return %5 : tensor<1x64x56x56xf32, 4295446528 : i64> loc(#loc)
    } loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc2 = loc("filter")
