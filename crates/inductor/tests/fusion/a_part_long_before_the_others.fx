# test fuse
# What is computed long before the rest of a concatenation is copied when that is there: the whole would live from then on,
# while larger values come and go.
fx 1.0

graph "g" {
  %x: f32[16, 32] = input "x"
  %w: f32[32, 32] = parameter "w"
  %v: f32[32, 1024] = parameter "v"
  %u: f32[1024, 32] = parameter "u"
  %t: f32[32, 256] = parameter "t"

  %a: f32[16, 32] = prims.matmul(%x, %w)
  %b: f32[16, 1024] = prims.matmul(%a, %v)
  %c: f32[16, 32] = prims.matmul(%b, %u)
  %d: f32[16, 256] = prims.matmul(%c, %t)
  %e: f32[16, 288] = prims.cat([%a, %d], 1)
  %y: f32[288, 16] = prims.permute(%e, [1, 0])
  %z: f32[16, 16] = prims.matmul(%e, %y)
  return %z
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[16, 32]{32, 1}+0 input 0
# buffer b1 "w" f32[32, 32]{32, 1}+0 constant 0
# buffer b2 "v" f32[32, 1024]{1024, 1}+0 constant 1
# buffer b3 "u" f32[1024, 32]{32, 1}+0 constant 2
# buffer b4 "t" f32[32, 256]{256, 1}+0 constant 3
# buffer b5 "e" f32[16, 288]{288, 1}+0 arena
# buffer b6 "a" f32[16, 32]{32, 1}+0 arena
# buffer b7 "b" f32[16, 1024]{1024, 1}+0 arena
# buffer b8 "c" f32[16, 32]{32, 1}+0 arena
# buffer b9 "d" f32[16, 256]{288, 1}+32 view b5
# buffer b10 "e_part" f32[16, 32]{288, 1}+0 view b5
# buffer b11 "z" f32[16, 16]{16, 1}+0 output
# input "x" b0
# constant "w" b1
# constant "v" b2
# constant "u" b3
# constant "t" b4
# output "z" b11[16, 16]{16, 1}+0
# init:
# steps:
# matmul "a" acc f32 from "a"
#   a b0[16, 32]{32, 1}+0
#   b b1[32, 32]{32, 1}+0
#   epilogue [16, 32]
#     v0: f32 = template
#     v1: f32 = store b6[i0, i1], v0
# matmul "b" acc f32 from "b"
#   a b6[16, 32]{32, 1}+0
#   b b2[32, 1024]{1024, 1}+0
#   epilogue [16, 1024]
#     v0: f32 = template
#     v1: f32 = store b7[i0, i1], v0
# matmul "c" acc f32 from "c"
#   a b7[16, 1024]{1024, 1}+0
#   b b3[1024, 32]{32, 1}+0
#   epilogue [16, 32]
#     v0: f32 = template
#     v1: f32 = store b8[i0, i1], v0
# matmul "d" acc f32 from "d"
#   a b8[16, 32]{32, 1}+0
#   b b4[32, 256]{256, 1}+0
#   epilogue [16, 256]
#     v0: f32 = template
#     v1: f32 = store b9[i0, i1], v0
# loop "e" outer [16, 32] from "e"
#   stage []
#     v0: f32 = load b6[i0, i1]
#     v1: f32 = store b10[i0, i1], v0
# matmul "z" acc f32 from "z"
#   a b5[16, 288]{288, 1}+0
#   b b5[288, 16]{1, 288}+0
#   epilogue [16, 16]
#     v0: f32 = template
#     v1: f32 = store b11[i0, i1], v0
# plan bytes 69632:
#   b5 live 3..5 at 0
#   b6 live 0..4 at 65536
#   b7 live 1..2 at 0
#   b8 live 2..3 at 67584
