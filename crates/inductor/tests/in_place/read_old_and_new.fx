# The old value is read after its successor was made in program order, and that one is read too.
fx 1.0

graph "reads" {
  %a: f32[4, 6] = buffer "a"

  %new: f32[4, 6] = aten.add.Scalar(%a, 1.0, 1)
  %e: f32[4, 6] = aten.exp.default(%new)
  %rows: f32[4] = aten.sum.dim_IntList(%a, [1], false, none)
  %columns: f32[6] = aten.sum.dim_IntList(%new, [0], false, none)
  return buffer "a" = %new
  return %e
  return %rows
  return %columns
  return %a
}

# expected:
# kir 1.12
# program "reads"
# buffer b0 "a" f32[4, 6]{6, 1}+0 input 0
# buffer b1 "new" f32[4, 6]{6, 1}+0 view b0
# buffer b2 "e" f32[4, 6]{6, 1}+0 output
# buffer b3 "rows" f32[4]{1}+0 output
# buffer b4 "columns" f32[6]{1}+0 output
# buffer b5 "a_copy" f32[4, 6]{6, 1}+0 output
# input "a" b0 written
# output "e" b2[4, 6]{6, 1}+0
# output "rows" b3[4]{1}+0
# output "columns" b4[6]{1}+0
# output "a" b5[4, 6]{6, 1}+0
# init:
# steps:
# loop "rows" outer [4] from "rows"
#   acc0: f32 sum
#   stage [6]
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = reduce acc0, v0
#   stage []
#     v0: f32 = acc0
#     v1: f32 = store b3[i0], v0
# loop "a" outer [4, 6] from "a"
#   stage []
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = store b5[i0, i1], v0
# loop "fused_new_e_columns" outer [6] from "new", "e", "columns"
#   acc0: f32 sum
#   stage [4]
#     v0: f32 = load b0[i1, i0]
#     v1: f32 = const 1.0
#     v2: f32 = add v0, v1
#     v3: f32 = exp v2
#     v4: f32 = reduce acc0, v2
#     v5: f32 = store b1[i1, i0], v2
#     v6: f32 = store b2[i1, i0], v3
#   stage []
#     v0: f32 = acc0
#     v1: f32 = store b4[i0], v0
# plan bytes 0:
