# test fuse
# Where rows of two sources are concatenated a condition on the column says whether an index is read, not which: the gathered rows stay
# rows.
fx 1.0

graph "g" {
  %x: f32[2, 60, 6] = input "x"
  %o: f32[2, 10, 1, 6] = input "o"
  %n: i64[2, 1, 1] = input "n"
  %i: i64[2, 10, 3] = input "i"
  %w: f32[4, 12, 1, 1] = input "w"

  %m: i64[2, 10, 3] = prims.expand(%n, [2, 10, 3])
  %r: f32[2, 10, 3, 6] = prims.index(%x, [%m, %i], 0)
  %e: f32[2, 10, 3, 6] = prims.expand(%o, [2, 10, 3, 6])
  %h: f32[2, 10, 3, 12] = prims.cat([%r, %e], 3)
  %t: f32[2, 12, 10, 3] = prims.permute(%h, [0, 3, 1, 2])
  %u: f32[2, 12, 10, 3] = prims.exp(%t)
  %y: f32[2, 4, 10, 3] = prims.conv(%u, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  return %y
}

# expected:
# kir 1.12
# program "g"
# site "prims.index" "" dim 0
# site "prims.index" "" dim 1
# buffer b0 "x" f32[2, 60, 6]{360, 6, 1}+0 input 0
# buffer b1 "o" f32[2, 10, 1, 6]{60, 6, 6, 1}+0 input 1
# buffer b2 "n" i64[2, 1, 1]{1, 1, 1}+0 input 2
# buffer b3 "i" i64[2, 10, 3]{30, 3, 1}+0 input 3
# buffer b4 "w" f32[4, 12, 1, 1]{12, 1, 1, 1}+0 input 4
# buffer b5 "u" f32[2, 12, 10, 3]{360, 1, 36, 12}+0 arena
# buffer b6 "y" f32[2, 4, 10, 3]{120, 30, 3, 1}+0 output
# input "x" b0
# input "o" b1
# input "n" b2
# input "i" b3
# input "w" b4
# output "y" b6[2, 4, 10, 3]{120, 30, 3, 1}+0
# init:
# steps:
# loop "fused_r_h_u" outer [2, 10, 3, 12] from "r", "h", "u"
#   stage []
#     v0: i64 = index i3
#     v1: i64 = const 6
#     v2: bool = ge v0, v1
#     v3: f32 = load b1[i0, i1, 0, i3 - 6] if v2
#     v4: bool = lt v0, v1
#     v5: i64 = load b2[i0, 0, 0] if v4
#     v6: i64 = check v5, [2] if v4 at 0
#     v7: i64 = load b3[i0, i1, i2] if v4
#     v8: i64 = check v7, [60] if v4 at 1
#     v9: f32 = load b0[v6, v8, i3] if v4
#     v10: f32 = select v4, v9, v3
#     v11: f32 = exp v10
#     v12: f32 = store b5[i0, i3, i1, i2], v11
# conv "y" acc f32 from "y"
#   input b5[2, 12, 10, 3]{360, 1, 36, 12}+0
#   weight b4[4, 12, 1, 1]{12, 1, 1, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [2, 4, 10, 3]
#     v0: f32 = template
#     v1: f32 = store b6[i0, i1, i2, i3], v0
# plan bytes 2880:
#   b5 live 0..1 at 0
