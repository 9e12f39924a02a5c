# Under mixed precision on a CPU the input has 16 bits and the parameters do not: their gradients have their own dtype.
fx 1.0

graph "norm_gradients_of_mixed_precision" {
  %g: bf16[4, 6] = input "g"
  %x: bf16[4, 6] = input "x"
  %w: f32[6] = input "w"
  %mean: f32[4, 1] = input "mean"
  %rstd: f32[4, 1] = input "rstd"
  %h: bf16[2, 6, 5] = input "h"
  %z: bf16[2, 6, 5] = input "z"
  %of_groups: f32[2, 3] = input "of_groups"
  %rstds: f32[2, 3] = input "rstds"

  %dx: bf16[4, 6], %dw: f32[6], %db: f32[6] = aten.native_layer_norm_backward.default(%g, %x, [6], %mean, %rstd, %w, %w, [true, true, true])
  %dz: bf16[2, 6, 5], %dv: f32[6], %dc: f32[6] = aten.native_group_norm_backward.default(%h, %z, %of_groups, %rstds, %w, 2, 6, 5, 3, [true, true, true])
  return %dx
  return %dw
  return %db
  return %dz
  return %dv
  return %dc
}
