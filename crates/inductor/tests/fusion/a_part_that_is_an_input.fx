# test fuse
# A product writes its part of a concatenation; a kernel copies the other, which is an input.
fx 1.0

graph "g" {
  %x: f32[3, 4] = input "x"
  %w: f32[4, 8] = parameter "w"
  %u: f32[12, 4] = parameter "u"

  %a: f32[3, 8] = prims.matmul(%x, %w)
  %c: f32[3, 12] = prims.cat([%a, %x], 1)
  %y: f32[3, 4] = prims.matmul(%c, %u)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[3, 4]{4, 1}+0 input 0
# buffer b1 "w" f32[4, 8]{8, 1}+0 constant 0
# buffer b2 "u" f32[12, 4]{4, 1}+0 constant 1
# buffer b3 "c" f32[3, 12]{12, 1}+0 arena
# buffer b4 "a" f32[3, 8]{12, 1}+0 view b3
# buffer b5 "c_part" f32[3, 4]{12, 1}+8 view b3
# buffer b6 "y" f32[3, 4]{4, 1}+0 output
# input "x" b0
# constant "w" b1
# constant "u" b2
# output "y" b6[3, 4]{4, 1}+0
# init:
# steps:
# matmul "a" acc f32 from "a"
#   a b0[3, 4]{4, 1}+0
#   b b1[4, 8]{8, 1}+0
#   epilogue [3, 8]
#     v0: f32 = template
#     v1: f32 = store b4[i0, i1], v0
# loop "c" outer [3, 4] from "c"
#   stage []
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = store b5[i0, i1], v0
# matmul "y" acc f32 from "y"
#   a b3[3, 12]{12, 1}+0
#   b b2[12, 4]{4, 1}+0
#   epilogue [3, 4]
#     v0: f32 = template
#     v1: f32 = store b6[i0, i1], v0
# plan bytes 192:
#   b3 live 0..2 at 0
