# The same, turned: no kernel can do both at one point.
fx 1.0

graph "swap" {
  %a: f32[5, 5] = buffer "a"
  %b: f32[5, 5] = buffer "b"

  %at: f32[5, 5]{1, 5} = aten.t.default(%a)
  %bt: f32[5, 5]{1, 5} = aten.t.default(%b)
  return buffer "a" = %bt
  return buffer "b" = %at
}

# expected:
# kir 1.12
# program "swap"
# buffer b0 "a" f32[5, 5]{5, 1}+0 input 0
# buffer b1 "b" f32[5, 5]{5, 1}+0 input 1
# buffer b2 "at" f32[5, 5]{5, 1}+0 arena
# buffer b3 "bt" f32[5, 5]{5, 1}+0 view b0
# buffer b4 "b_new" f32[5, 5]{5, 1}+0 view b1
# input "a" b0 written
# input "b" b1 written
# init:
# steps:
# loop "at" outer [5, 5] from "at"
#   stage []
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = store b2[i1, i0], v0
# loop "bt" outer [5, 5] from "bt"
#   stage []
#     v0: f32 = load b1[i0, i1]
#     v1: f32 = store b3[i1, i0], v0
# loop "b_new_copy" outer [5, 5]
#   stage []
#     v0: f32 = load b2[i0, i1]
#     v1: f32 = store b4[i0, i1], v0
# plan bytes 128:
#   b2 live 0..2 at 0
