fx 1.0

graph "in" {
  %m: f32[3] = buffer "running_mean"
  %v: f32[3] = buffer "running_var"
  %x: f32[2, 3, 4] = input "x"

  %y: f32[2, 3, 4] = aten.instance_norm.default(%x, none, none, %m, %v, true, 0.1, 1e-5, true)
  return %y
}

# expected:
# fx 1.1
#
# graph "in" {
#   %m: f32[3] = buffer "running_mean"
#   %v: f32[3] = buffer "running_var"
#   %x: f32[2, 3, 4] = input "x"
#
#   %y: f32[1, 6, 4] = aten.reshape.default(%x, [1, 6, 4])
#   %y_1: f32[6] = aten.repeat.default(%m, [2])
#   %y_2: f32[6] = aten.repeat.default(%v, [2])
#   %y_3: f32[1, 6, 4], %saved_mean: f32[6], %saved_rstd: f32[6], %running_mean: f32[6], %running_var: f32[6] = aten._native_batch_norm_legit_functional.default(%y, none, none, %y_1, %y_2, true, 0.1, 1e-5) from :::"aten.instance_norm.default"
#   %y_4: f32[2, 3] = aten.reshape.default(%running_mean, [2, 3])
#   %running: f32[3] = aten.mean.dim(%y_4, [0], false, none)
#   %y_5: f32[2, 3] = aten.reshape.default(%running_var, [2, 3])
#   %running_1: f32[3] = aten.mean.dim(%y_5, [0], false, none)
#   %y_6: f32[2, 3, 4] = aten.reshape.default(%y_3, [2, 3, 4])
#   return %y_6
#   return buffer "running_mean" = %running
#   return buffer "running_var" = %running_1
# }
