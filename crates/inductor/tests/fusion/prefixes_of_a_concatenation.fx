# test fuse
# Every layer reads all results so far, as in DenseNet: they lie in the last concatenation, whose beginnings are the others.
fx 1.0

graph "g" {
  %x: f32[2, 4, 3, 3] = input "x"
  %s: f32[4, 4, 1, 1] = parameter "s"
  %w: f32[4, 4, 1, 1] = parameter "w"
  %v: f32[4, 8, 1, 1] = parameter "v"
  %u: f32[4, 12, 1, 1] = parameter "u"

  %a: f32[2, 4, 3, 3] = prims.conv(%x, %s, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  %ar: f32[2, 4, 3, 3] = prims.max(%a, 0.0)
  %b: f32[2, 4, 3, 3] = prims.conv(%ar, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  %c: f32[2, 8, 3, 3] = prims.cat([%a, %b], 1)
  %cr: f32[2, 8, 3, 3] = prims.max(%c, 0.0)
  %d: f32[2, 4, 3, 3] = prims.conv(%cr, %v, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  %e: f32[2, 12, 3, 3] = prims.cat([%a, %b, %d], 1)
  %er: f32[2, 12, 3, 3] = prims.max(%e, 0.0)
  %y: f32[2, 4, 3, 3] = prims.conv(%er, %u, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[2, 4, 3, 3]{36, 9, 3, 1}+0 input 0
# buffer b1 "s" f32[4, 4, 1, 1]{4, 1, 1, 1}+0 constant 0
# buffer b2 "w" f32[4, 4, 1, 1]{4, 1, 1, 1}+0 constant 1
# buffer b3 "v" f32[4, 8, 1, 1]{8, 1, 1, 1}+0 constant 2
# buffer b4 "u" f32[4, 12, 1, 1]{12, 1, 1, 1}+0 constant 3
# buffer b5 "e" f32[2, 12, 3, 3]{108, 1, 36, 12}+0 arena
# buffer b6 "a" f32[2, 4, 3, 3]{108, 1, 36, 12}+0 view b5
# buffer b7 "ar" f32[2, 4, 3, 3]{36, 1, 12, 4}+0 arena
# buffer b8 "b" f32[2, 4, 3, 3]{108, 1, 36, 12}+4 view b5
# buffer b9 "c" f32[2, 8, 3, 3]{108, 1, 36, 12}+0 view b5
# buffer b10 "cr" f32[2, 8, 3, 3]{72, 1, 24, 8}+0 arena
# buffer b11 "d" f32[2, 4, 3, 3]{108, 1, 36, 12}+8 view b5
# buffer b12 "er" f32[2, 12, 3, 3]{108, 1, 36, 12}+0 arena
# buffer b13 "y" f32[2, 4, 3, 3]{36, 9, 3, 1}+0 output
# input "x" b0
# constant "s" b1
# constant "w" b2
# constant "v" b3
# constant "u" b4
# output "y" b13[2, 4, 3, 3]{36, 9, 3, 1}+0
# init:
# steps:
# conv "a_ar" acc f32 from "a", "ar"
#   input b0[2, 4, 3, 3]{36, 9, 3, 1}+0
#   weight b1[4, 4, 1, 1]{4, 1, 1, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [2, 4, 3, 3]
#     v0: f32 = template
#     v1: f32 = const 0.0
#     v2: f32 = max v0, v1
#     v3: f32 = store b6[i0, i1, i2, i3], v0
#     v4: f32 = store b7[i0, i1, i2, i3], v2
# conv "b" acc f32 from "b"
#   input b7[2, 4, 3, 3]{36, 1, 12, 4}+0
#   weight b2[4, 4, 1, 1]{4, 1, 1, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [2, 4, 3, 3]
#     v0: f32 = template
#     v1: f32 = store b8[i0, i1, i2, i3], v0
# loop "cr" outer [2, 3, 3, 8] from "cr"
#   stage []
#     v0: f32 = load b9[i0, i3, i1, i2]
#     v1: f32 = const 0.0
#     v2: f32 = max v0, v1
#     v3: f32 = store b10[i0, i3, i1, i2], v2
# conv "d" acc f32 from "d"
#   input b10[2, 8, 3, 3]{72, 1, 24, 8}+0
#   weight b3[4, 8, 1, 1]{8, 1, 1, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [2, 4, 3, 3]
#     v0: f32 = template
#     v1: f32 = store b11[i0, i1, i2, i3], v0
# loop "er" outer [2, 3, 3, 12] from "er"
#   stage []
#     v0: f32 = load b5[i0, i3, i1, i2]
#     v1: f32 = const 0.0
#     v2: f32 = max v0, v1
#     v3: f32 = store b12[i0, i3, i1, i2], v2
# conv "y" acc f32 from "y"
#   input b12[2, 12, 3, 3]{108, 1, 36, 12}+0
#   weight b4[4, 12, 1, 1]{12, 1, 1, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [2, 4, 3, 3]
#     v0: f32 = template
#     v1: f32 = store b13[i0, i1, i2, i3], v0
# plan bytes 1792:
#   b5 live 0..4 at 0
#   b7 live 0..1 at 896
#   b10 live 2..3 at 896
#   b12 live 4..5 at 896
