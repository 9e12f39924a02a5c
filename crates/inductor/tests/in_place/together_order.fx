# Sums over channels stand together, and so do the points behind them; a sum of what one of these writes comes after them.
fx 1.0

graph "order" {
  %x: f32[4, 3, 7] = input "x"
  %y: f32[5, 9] = input "y"
  %mean: f32[3] = buffer "mean"
  %scale: f32[9] = buffer "scale"

  %sx: f32[3] = aten.sum.dim_IntList(%x, [0, 2], false, none)
  %sy: f32[9] = aten.sum.dim_IntList(%y, [0], false, none)
  %row: f32[5] = aten.sum.dim_IntList(%y, [1], false, none)
  %mean_new: f32[3] = aten.add.Tensor(%mean, %sx, 1)
  %scale_new: f32[9] = aten.mul.Tensor(%scale, %sy)
  %flipped: f32[9] = aten.flip.default(%scale_new, [0])
  %total: f32[] = aten.sum.default(%flipped, none)
  %rest: f32[5] = aten.mul.Tensor(%row, %total)
  return buffer "mean" = %mean_new
  return buffer "scale" = %scale_new
  return %rest
}

# expected:
# kir 1.12
# program "order"
# buffer b0 "x" f32[4, 3, 7]{21, 7, 1}+0 input 0
# buffer b1 "y" f32[5, 9]{9, 1}+0 input 1
# buffer b2 "mean" f32[3]{1}+0 input 2
# buffer b3 "scale" f32[9]{1}+0 input 3
# buffer b4 "row" f32[5]{1}+0 arena
# buffer b5 "mean_new" f32[3]{1}+0 view b2
# buffer b6 "scale_new" f32[9]{1}+0 view b3
# buffer b7 "rest" f32[5]{1}+0 output
# input "x" b0
# input "y" b1
# input "mean" b2 written
# input "scale" b3 written
# output "rest" b7[5]{1}+0
# init:
# steps:
# together "fused_sx_mean_new_and_2_more"
# do:
# loop "fused_sx_mean_new" outer [3] from "sx", "mean_new"
#   acc0: f32 sum
#   stage [4, 7]
#     v0: f32 = load b0[i1, i0, i2]
#     v1: f32 = reduce acc0, v0
#   stage []
#     v0: f32 = load b2[i0]
#     v1: f32 = acc0
#     v2: f32 = add v0, v1
#     v3: f32 = store b5[i0], v2
# loop "fused_sy_scale_new" outer [9] from "sy", "scale_new"
#   acc0: f32 sum
#   stage [5]
#     v0: f32 = load b1[i1, i0]
#     v1: f32 = reduce acc0, v0
#   stage []
#     v0: f32 = load b3[i0]
#     v1: f32 = acc0
#     v2: f32 = mul v0, v1
#     v3: f32 = store b6[i0], v2
# loop "row" outer [5] from "row"
#   acc0: f32 sum
#   stage [9]
#     v0: f32 = load b1[i0, i1]
#     v1: f32 = reduce acc0, v0
#   stage []
#     v0: f32 = acc0
#     v1: f32 = store b4[i0], v0
# end
# loop "fused_total_rest" outer [] from "total", "rest"
#   acc0: f32 sum
#   stage [9]
#     v0: f32 = load b6[-i0 + 8]
#     v1: f32 = reduce acc0, v0
#   stage [5]
#     v0: f32 = load b4[i0]
#     v1: f32 = acc0
#     v2: f32 = mul v0, v1
#     v3: f32 = store b7[i0], v2
# plan bytes 64:
#   b4 live 0..1 at 0
