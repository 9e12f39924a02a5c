# test fuse
# A part that is returned has memory of its own, one whose rows would not begin where vectors do too; what is concatenated where it is read has no memory.
fx 1.0

graph "g" {
  %x: f32[3, 4] = input "x"
  %w: f32[4, 8] = parameter "w"
  %v: f32[4, 3] = parameter "v"
  %u: f32[11, 4] = parameter "u"

  %a: f32[3, 8] = prims.matmul(%x, %w)
  %b: f32[3, 3] = prims.matmul(%x, %v)
  %c: f32[3, 11] = prims.cat([%a, %b], 1)
  %y: f32[3, 4] = prims.matmul(%c, %u)
  %d: f32[6, 4] = prims.cat([%y, %x], 0)
  %z: f32[6, 4] = prims.max(%d, 0.0)
  return %a
  return %z
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[3, 4]{4, 1}+0 input 0
# buffer b1 "w" f32[4, 8]{8, 1}+0 constant 0
# buffer b2 "v" f32[4, 3]{3, 1}+0 constant 1
# buffer b3 "u" f32[11, 4]{4, 1}+0 constant 2
# buffer b4 "a" f32[3, 8]{8, 1}+0 output
# buffer b5 "b" f32[3, 3]{3, 1}+0 arena
# buffer b6 "c" f32[3, 11]{11, 1}+0 arena
# buffer b7 "y" f32[3, 4]{4, 1}+0 arena
# buffer b8 "z" f32[6, 4]{4, 1}+0 output
# input "x" b0
# constant "w" b1
# constant "v" b2
# constant "u" b3
# output "a" b4[3, 8]{8, 1}+0
# output "z" b8[6, 4]{4, 1}+0
# init:
# steps:
# together "a_and_1_more"
# do:
# matmul "a" acc f32 from "a"
#   a b0[3, 4]{4, 1}+0
#   b b1[4, 8]{8, 1}+0
#   epilogue [3, 8]
#     v0: f32 = template
#     v1: f32 = store b4[i0, i1], v0
# matmul "b" acc f32 from "b"
#   a b0[3, 4]{4, 1}+0
#   b b2[4, 3]{3, 1}+0
#   epilogue [3, 3]
#     v0: f32 = template
#     v1: f32 = store b5[i0, i1], v0
# end
# loop "c" outer [3, 11] from "c"
#   stage []
#     v0: i64 = index i1
#     v1: i64 = const 8
#     v2: bool = ge v0, v1
#     v3: f32 = load b5[i0, i1 - 8] if v2
#     v4: bool = lt v0, v1
#     v5: f32 = load b4[i0, i1] if v4
#     v6: f32 = select v4, v5, v3
#     v7: f32 = store b6[i0, i1], v6
# matmul "y" acc f32 from "y"
#   a b6[3, 11]{11, 1}+0
#   b b3[11, 4]{4, 1}+0
#   epilogue [3, 4]
#     v0: f32 = template
#     v1: f32 = store b7[i0, i1], v0
# loop "fused_d_z" outer [6, 4] from "d", "z"
#   stage []
#     v0: i64 = index i0
#     v1: i64 = const 3
#     v2: bool = ge v0, v1
#     v3: f32 = load b0[i0 - 3, i1] if v2
#     v4: bool = lt v0, v1
#     v5: f32 = load b7[i0, i1] if v4
#     v6: f32 = select v4, v5, v3
#     v7: f32 = const 0.0
#     v8: f32 = max v6, v7
#     v9: f32 = store b8[i0, i1], v8
# plan bytes 256:
#   b5 live 0..1 at 192
#   b6 live 1..2 at 0
#   b7 live 2..3 at 192
