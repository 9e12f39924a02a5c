# test fuse on-device
# Three convolutions read one copy with the channels innermost; a weight as large as an image, a window of one point and weights that
# are bound stay as they are.
fx 1.0

graph "g" {
  %x: f32[2, 3, 6, 6] = input "x"
  %w: f32[4, 3, 3, 3] = input "w"
  %g: f32[5, 3, 4, 4] = input "g"
  %p: f32[4, 4, 1, 1] = input "p"
  %k: f32[4, 4, 3, 3] = parameter "k"

  %c: f32[2, 4, 6, 6] = prims.conv(%x, %w, [1, 1], [1, 1, 1, 1], [1, 1], false, [0, 0], 1)
  %i: f32[2, 3, 6, 6] = prims.conv(%c, %w, [1, 1], [1, 1, 1, 1], [1, 1], true, [0, 0], 1)
  %t: f32[3, 4, 3, 3] = prims.permute(%w, [1, 0, 2, 3])
  %e: f32[3, 4, 3, 3] = prims.slice(%t, 2, 2, 3, -1)
  %f: f32[3, 4, 3, 3] = prims.slice(%e, 3, 2, 3, -1)
  %d: f32[2, 3, 6, 6] = prims.conv(%c, %f, [1, 1], [1, 1, 1, 1], [1, 1], false, [0, 0], 1)
  %o: f32[2, 5, 3, 3] = prims.conv(%x, %g, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  %q: f32[2, 4, 6, 6] = prims.conv(%c, %p, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  %b: f32[2, 4, 6, 6] = prims.conv(%q, %k, [1, 1], [1, 1, 1, 1], [1, 1], false, [0, 0], 1)
  return %i
  return %d
  return %o
  return %b
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[2, 3, 6, 6]{108, 36, 6, 1}+0 input 0
# buffer b1 "w" f32[4, 3, 3, 3]{27, 9, 3, 1}+0 input 1
# buffer b2 "g" f32[5, 3, 4, 4]{48, 16, 4, 1}+0 input 2
# buffer b3 "p" f32[4, 4, 1, 1]{4, 1, 1, 1}+0 input 3
# buffer b4 "k" f32[4, 4, 3, 3]{36, 9, 3, 1}+0 constant 0
# buffer b5 "w_copy" f32[4, 3, 3, 3]{27, 1, 9, 3}+0 arena
# buffer b6 "c" f32[2, 4, 6, 6]{144, 1, 24, 4}+0 arena
# buffer b7 "i" f32[2, 3, 6, 6]{108, 36, 6, 1}+0 output
# buffer b8 "d" f32[2, 3, 6, 6]{108, 36, 6, 1}+0 output
# buffer b9 "o" f32[2, 5, 3, 3]{45, 9, 3, 1}+0 output
# buffer b10 "q" f32[2, 4, 6, 6]{144, 1, 24, 4}+0 arena
# buffer b11 "b" f32[2, 4, 6, 6]{144, 36, 6, 1}+0 output
# input "x" b0
# input "w" b1
# input "g" b2
# input "p" b3
# constant "k" b4
# output "i" b7[2, 3, 6, 6]{108, 36, 6, 1}+0
# output "d" b8[2, 3, 6, 6]{108, 36, 6, 1}+0
# output "o" b9[2, 5, 3, 3]{45, 9, 3, 1}+0
# output "b" b11[2, 4, 6, 6]{144, 36, 6, 1}+0
# init:
# steps:
# loop "w" outer [4, 3, 3, 3] from "w"
#   stage []
#     v0: f32 = load b1[i0, i1, i2, i3]
#     v1: f32 = store b5[i0, i1, i2, i3], v0
# conv "c" acc f32 from "c"
#   input b0[2, 3, 6, 6]{108, 36, 6, 1}+0
#   weight b5[4, 3, 3, 3]{27, 1, 9, 3}+0
#   window stride [1, 1] padding [(1, 1), (1, 1)] dilation [1, 1] groups 1
#   epilogue [2, 4, 6, 6]
#     v0: f32 = template
#     v1: f32 = store b6[i0, i1, i2, i3], v0
# conv "i" acc f32 transposed from "i"
#   input b6[2, 4, 6, 6]{144, 1, 24, 4}+0
#   weight b5[4, 3, 3, 3]{27, 1, 9, 3}+0
#   window stride [1, 1] padding [(1, 1), (1, 1)] dilation [1, 1] groups 1
#   epilogue [2, 3, 6, 6]
#     v0: f32 = template
#     v1: f32 = store b7[i0, i1, i2, i3], v0
# conv "d" acc f32 from "d"
#   input b6[2, 4, 6, 6]{144, 1, 24, 4}+0
#   weight b5[3, 4, 3, 3]{1, 27, -9, -3}+24
#   window stride [1, 1] padding [(1, 1), (1, 1)] dilation [1, 1] groups 1
#   epilogue [2, 3, 6, 6]
#     v0: f32 = template
#     v1: f32 = store b8[i0, i1, i2, i3], v0
# conv "o" acc f32 from "o"
#   input b0[2, 3, 6, 6]{108, 36, 6, 1}+0
#   weight b2[5, 3, 4, 4]{48, 16, 4, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [2, 5, 3, 3]
#     v0: f32 = template
#     v1: f32 = store b9[i0, i1, i2, i3], v0
# conv "q" acc f32 from "q"
#   input b6[2, 4, 6, 6]{144, 1, 24, 4}+0
#   weight b3[4, 4, 1, 1]{4, 1, 1, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [2, 4, 6, 6]
#     v0: f32 = template
#     v1: f32 = store b10[i0, i1, i2, i3], v0
# conv "b" acc f32 from "b"
#   input b10[2, 4, 6, 6]{144, 1, 24, 4}+0
#   weight b4[4, 4, 3, 3]{36, 9, 3, 1}+0
#   window stride [1, 1] padding [(1, 1), (1, 1)] dilation [1, 1] groups 1
#   epilogue [2, 4, 6, 6]
#     v0: f32 = template
#     v1: f32 = store b11[i0, i1, i2, i3], v0
# plan bytes 2304:
#   b5 live 0..3 at 1152
#   b6 live 1..5 at 0
#   b10 live 5..6 at 1152
