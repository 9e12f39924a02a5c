# The running statistics are outputs; the counter, an integer, is added to in place.
fx 1.0

graph "bn" {
  %w: f32[8] = parameter "bn.weight"
  %b: f32[8] = parameter "bn.bias"
  %m: f32[8] = buffer "bn.running_mean"
  %v: f32[8] = buffer "bn.running_var"
  %n: i64[] = buffer "bn.num_batches_tracked"
  %x: f32[4, 8, 5, 5] = input "x"

  %add_: i64[] = aten.add_.Tensor(%n, 1, 1) from bn:add_
  %batch_norm: f32[4, 8, 5, 5] = aten.batch_norm.default(%x, %w, %b, %m, %v, true, 0.1, 1e-5, true) from bn:batch_norm
  %eval: f32[4, 8, 5, 5] = aten.batch_norm.default(%x, %w, %b, %m, %v, false, 0.1, 1e-5, true) from bn:batch_norm
  return %batch_norm
  return %eval
}

# expected:
# fx 1.0
#
# graph "bn" {
#   %w: f32[8] = parameter "bn.weight"
#   %b: f32[8] = parameter "bn.bias"
#   %m: f32[8] = buffer "bn.running_mean"
#   %v: f32[8] = buffer "bn.running_var"
#   %n: i64[] = buffer "bn.num_batches_tracked"
#   %x: f32[4, 8, 5, 5] = input "x"
#
#   %add: i64[] = aten.add.Tensor(%n, 1, 1) from bn:add_
#   %batch_norm: f32[4, 8, 5, 5], %saved_mean: f32[8], %saved_rstd: f32[8], %running_mean: f32[8], %running_var: f32[8] = aten._native_batch_norm_legit_functional.default(%x, %w, %b, %m, %v, true, 0.1, 1e-5) from bn:batch_norm
#   %eval: f32[4, 8, 5, 5] = aten.batch_norm.default(%x, %w, %b, %running_mean, %running_var, false, 0.1, 1e-5, true) from bn:batch_norm
#   return %batch_norm
#   return %eval
#   return buffer "bn.running_mean" = %running_mean
#   return buffer "bn.running_var" = %running_var
#   return buffer "bn.num_batches_tracked" = %add
# }
