# test decompose
#
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

# expected:
# fx 1.0
#
# graph "norm_gradients_of_mixed_precision" {
#   %g: bf16[4, 6] = input "g"
#   %x: bf16[4, 6] = input "x"
#   %w: f32[6] = input "w"
#   %mean: f32[4, 1] = input "mean"
#   %rstd: f32[4, 1] = input "rstd"
#   %h: bf16[2, 6, 5] = input "h"
#   %z: bf16[2, 6, 5] = input "z"
#   %of_groups: f32[2, 3] = input "of_groups"
#   %rstds: f32[2, 3] = input "rstds"
#
#   %dx: f32[4, 6] = prims.convert(%g, f32)
#   %dx_1: f32[4, 6] = prims.convert(%x, f32)
#   %dx_2: f32[4, 6] = prims.expand(%mean, [4, 6])
#   %dx_3: f32[4, 6] = prims.sub(%dx_1, %dx_2)
#   %dx_4: f32[4, 6] = prims.expand(%rstd, [4, 6])
#   %dx_5: f32[4, 6] = prims.mul(%dx_3, %dx_4)
#   %dx_6: f32[4, 6] = prims.expand(%w, [4, 6])
#   %dx_7: f32[4, 6] = prims.mul(%dx, %dx_6)
#   %dx_8: f32[4, 6] = prims.mul(%dx_7, %dx_5)
#   %dx_9: f32[4] = prims.sum(%dx_7, [1])
#   %dx_10: f32[4, 1] = prims.reshape(%dx_9, [4, 1])
#   %dx_11: f32[4, 1] = prims.div(%dx_10, 6.0)
#   %dx_12: f32[4] = prims.sum(%dx_8, [1])
#   %dx_13: f32[4, 1] = prims.reshape(%dx_12, [4, 1])
#   %dx_14: f32[4, 1] = prims.div(%dx_13, 6.0)
#   %dx_15: f32[4, 6] = prims.expand(%dx_14, [4, 6])
#   %dx_16: f32[4, 6] = prims.mul(%dx_5, %dx_15)
#   %dx_17: f32[4, 6] = prims.expand(%dx_11, [4, 6])
#   %dx_18: f32[4, 6] = prims.sub(%dx_7, %dx_17)
#   %dx_19: f32[4, 6] = prims.sub(%dx_18, %dx_16)
#   %dx_20: f32[4, 6] = prims.expand(%rstd, [4, 6])
#   %dx_21: f32[4, 6] = prims.mul(%dx_19, %dx_20)
#   %dx_22: f32[4, 6] = prims.mul(%dx, %dx_5)
#   %dx_23: f32[6] = prims.sum(%dx_22, [0])
#   %dx_24: f32[6] = prims.sum(%dx, [0])
#   %dx_25: bf16[4, 6] = prims.convert(%dx_21, bf16)
#   %dz: f32[2, 6, 5] = prims.convert(%h, f32)
#   %dz_1: f32[2, 3, 2, 5] = prims.reshape(%dz, [2, 3, 2, 5])
#   %dz_2: f32[2, 6, 5] = prims.convert(%z, f32)
#   %dz_3: f32[2, 3, 2, 5] = prims.reshape(%dz_2, [2, 3, 2, 5])
#   %dz_4: f32[2, 3, 1, 1] = prims.reshape(%of_groups, [2, 3, 1, 1])
#   %dz_5: f32[2, 3, 1, 1] = prims.reshape(%rstds, [2, 3, 1, 1])
#   %dz_6: f32[2, 3, 2, 5] = prims.expand(%dz_4, [2, 3, 2, 5])
#   %dz_7: f32[2, 3, 2, 5] = prims.sub(%dz_3, %dz_6)
#   %dz_8: f32[2, 3, 2, 5] = prims.expand(%dz_5, [2, 3, 2, 5])
#   %dz_9: f32[2, 3, 2, 5] = prims.mul(%dz_7, %dz_8)
#   %dz_10: f32[1, 3, 2, 1] = prims.reshape(%w, [1, 3, 2, 1])
#   %dz_11: f32[2, 3, 2, 5] = prims.expand(%dz_10, [2, 3, 2, 5])
#   %dz_12: f32[2, 3, 2, 5] = prims.mul(%dz_1, %dz_11)
#   %dz_13: f32[2, 3, 2, 5] = prims.mul(%dz_12, %dz_9)
#   %dz_14: f32[2, 3] = prims.sum(%dz_12, [2, 3])
#   %dz_15: f32[2, 3, 1, 1] = prims.reshape(%dz_14, [2, 3, 1, 1])
#   %dz_16: f32[2, 3, 1, 1] = prims.div(%dz_15, 10.0)
#   %dz_17: f32[2, 3] = prims.sum(%dz_13, [2, 3])
#   %dz_18: f32[2, 3, 1, 1] = prims.reshape(%dz_17, [2, 3, 1, 1])
#   %dz_19: f32[2, 3, 1, 1] = prims.div(%dz_18, 10.0)
#   %dz_20: f32[2, 3, 2, 5] = prims.expand(%dz_19, [2, 3, 2, 5])
#   %dz_21: f32[2, 3, 2, 5] = prims.mul(%dz_9, %dz_20)
#   %dz_22: f32[2, 3, 2, 5] = prims.expand(%dz_16, [2, 3, 2, 5])
#   %dz_23: f32[2, 3, 2, 5] = prims.sub(%dz_12, %dz_22)
#   %dz_24: f32[2, 3, 2, 5] = prims.sub(%dz_23, %dz_21)
#   %dz_25: f32[2, 3, 2, 5] = prims.expand(%dz_5, [2, 3, 2, 5])
#   %dz_26: f32[2, 3, 2, 5] = prims.mul(%dz_24, %dz_25)
#   %dz_27: f32[2, 6, 5] = prims.reshape(%dz_26, [2, 6, 5])
#   %dz_28: f32[2, 3, 2, 5] = prims.mul(%dz_1, %dz_9)
#   %dz_29: f32[3, 2] = prims.sum(%dz_28, [0, 3])
#   %dz_30: f32[6] = prims.reshape(%dz_29, [6])
#   %dz_31: f32[3, 2] = prims.sum(%dz_1, [0, 3])
#   %dz_32: f32[6] = prims.reshape(%dz_31, [6])
#   %dz_33: bf16[2, 6, 5] = prims.convert(%dz_27, bf16)
#   return %dx_25
#   return %dx_23
#   return %dx_24
#   return %dz_33
#   return %dz_30
#   return %dz_32
# }
