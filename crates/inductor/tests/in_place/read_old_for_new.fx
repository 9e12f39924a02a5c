# A value that needs the old and the new one: the old one is kept in a temporary's stead.
fx 1.0

graph "reads" {
  %a: f32[4, 6] = buffer "a"

  %new: f32[4, 6] = aten.flip.default(%a, [0, 1])
  %m: f32[4, 1] = aten.sum.dim_IntList(%new, [1], true, none)
  %mixed: f32[4, 6] = aten.mul.Tensor(%a, %m)
  return buffer "a" = %new
  return %mixed
}

# expected:
# kir 1.12
# program "reads"
# buffer b0 "a" f32[4, 6]{6, 1}+0 input 0
# buffer b1 "new" f32[4, 6]{6, 1}+0 arena
# buffer b2 "mixed" f32[4, 6]{6, 1}+0 output
# buffer b3 "a_new" f32[4, 6]{6, 1}+0 view b0
# input "a" b0 written
# output "mixed" b2[4, 6]{6, 1}+0
# init:
# steps:
# loop "fused_m_mixed" outer [4] from "m", "mixed"
#   acc0: f32 sum
#   stage [6]
#     v0: f32 = load b0[-i0 + 3, -i1 + 5]
#     v1: f32 = reduce acc0, v0
#     v2: f32 = store b1[i0, i1], v0
#   stage [6]
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = acc0
#     v2: f32 = mul v0, v1
#     v3: f32 = store b2[i0, i1], v2
# loop "a_new_copy" outer [4, 6]
#   stage []
#     v0: f32 = load b1[i0, i1]
#     v1: f32 = store b3[i0, i1], v0
# plan bytes 128:
#   b1 live 0..1 at 0
