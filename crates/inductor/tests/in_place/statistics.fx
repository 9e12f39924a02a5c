# Running statistics: the reduction's kernel updates them.
fx 1.0

graph "statistics" {
  %x: f32[64, 3] = input "x"
  %mean: f32[3] = buffer "running_mean"
  %count: i64[] = buffer "batches"

  %m: f32[3] = aten.mean.dim(%x, [0], false, none)
  %scaled: f32[3] = aten.mul.Scalar(%m, 0.1)
  %kept: f32[3] = aten.mul.Scalar(%mean, 0.9)
  %new: f32[3] = aten.add.Tensor(%kept, %scaled, 1)
  %more: i64[] = aten.add.Scalar(%count, 1, 1)
  %y: f32[64, 3] = aten.sub.Tensor(%x, %m, 1)
  return buffer "running_mean" = %new
  return buffer "batches" = %more
  return %y
}

# expected:
# kir 1.12
# program "statistics"
# buffer b0 "x" f32[64, 3]{3, 1}+0 input 0
# buffer b1 "mean" f32[3]{1}+0 input 1
# buffer b2 "count" i64[]{}+0 input 2
# buffer b3 "m" f32[3]{1}+0 arena
# buffer b4 "new" f32[3]{1}+0 view b1
# buffer b5 "more" i64[]{}+0 view b2
# buffer b6 "y" f32[64, 3]{3, 1}+0 output
# input "x" b0
# input "running_mean" b1 written
# input "batches" b2 written
# output "y" b6[64, 3]{3, 1}+0
# init:
# steps:
# loop "fused_m_scaled_kept_new_y" outer [3] from "m", "scaled", "kept", "new", "y"
#   acc0: f32 sum
#   stage [64]
#     v0: f32 = load b0[i1, i0]
#     v1: f32 = reduce acc0, v0
#   stage []
#     v0: f32 = acc0
#     v1: f32 = const 64.0
#     v2: f32 = div v0, v1
#     v3: f32 = load b1[i0]
#     v4: f32 = const 0.8999999761581421
#     v5: f32 = mul v3, v4
#     v6: f32 = const 0.10000000149011612
#     v7: f32 = mul v2, v6
#     v8: f32 = add v5, v7
#     v9: f32 = store b3[i0], v2
#     v10: f32 = store b4[i0], v8
#   stage [64]
#     v0: f32 = load b0[i1, i0]
#     v1: f32 = load b3[i0]
#     v2: f32 = sub v0, v1
#     v3: f32 = store b6[i1, i0], v2
# loop "more" outer [] from "more"
#   stage []
#     v0: i64 = load b2[]
#     v1: i64 = const 1
#     v2: i64 = add v0, v1
#     v3: i64 = store b5[], v2
# plan bytes 64:
#   b3 live 0..0 at 0
