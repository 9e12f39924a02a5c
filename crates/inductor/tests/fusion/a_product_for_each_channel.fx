# test fuse on-device
# Matrices that lie within one another, a channel each, are laid out one after another before a product reads their lines; what has few
# rows is read as it is.
fx 1.0

graph "g" {
  %x: f32[20, 18, 4] = input "x"
  %y: f32[16, 18, 4] = input "y"
  %u: f32[2, 18, 4] = input "u"

  %e: f32[20, 18, 4] = prims.exp(%x)
  %s: f32[16, 18, 4] = prims.sin(%y)
  %c: f32[2, 18, 4] = prims.cos(%u)
  %a: f32[4, 20, 18] = prims.permute(%e, [2, 0, 1])
  %b: f32[4, 18, 16] = prims.permute(%s, [2, 1, 0])
  %d: f32[4, 2, 18] = prims.permute(%c, [2, 0, 1])
  %p: f32[4, 20, 16] = prims.matmul(%a, %b)
  %q: f32[4, 2, 16] = prims.matmul(%d, %b)
  return %p
  return %q
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[20, 18, 4]{72, 4, 1}+0 input 0
# buffer b1 "y" f32[16, 18, 4]{72, 4, 1}+0 input 1
# buffer b2 "u" f32[2, 18, 4]{72, 4, 1}+0 input 2
# buffer b3 "c" f32[2, 18, 4]{72, 4, 1}+0 arena
# buffer b4 "a" f32[4, 20, 18]{360, 18, 1}+0 arena
# buffer b5 "b" f32[4, 18, 16]{288, 16, 1}+0 arena
# buffer b6 "p" f32[4, 20, 16]{320, 16, 1}+0 output
# buffer b7 "q" f32[4, 2, 16]{32, 16, 1}+0 output
# input "x" b0
# input "y" b1
# input "u" b2
# output "p" b6[4, 20, 16]{320, 16, 1}+0
# output "q" b7[4, 2, 16]{32, 16, 1}+0
# init:
# steps:
# together "e_and_2_more"
# do:
# loop "e" outer [20, 18, 4] from "e"
#   stage []
#     v0: f32 = load b0[i0, i1, i2]
#     v1: f32 = exp v0
#     v2: f32 = store b4[i2, i0, i1], v1
# loop "s" outer [16, 18, 4] from "s"
#   stage []
#     v0: f32 = load b1[i0, i1, i2]
#     v1: f32 = sin v0
#     v2: f32 = store b5[i2, i1, i0], v1
# loop "c" outer [2, 18, 4] from "c"
#   stage []
#     v0: f32 = load b2[i0, i1, i2]
#     v1: f32 = cos v0
#     v2: f32 = store b3[i0, i1, i2], v1
# end
# matmul "p" acc f32 from "p"
#   a b4[4, 20, 18]{360, 18, 1}+0
#   b b5[4, 18, 16]{288, 16, 1}+0
#   epilogue [4, 20, 16]
#     v0: f32 = template
#     v1: f32 = store b6[i0, i1, i2], v0
# matmul "q" acc f32 from "q"
#   a b3[4, 2, 18]{1, 72, 4}+0
#   b b5[4, 18, 16]{288, 16, 1}+0
#   epilogue [4, 2, 16]
#     v0: f32 = template
#     v1: f32 = store b7[i0, i1, i2], v0
# plan bytes 10944:
#   b3 live 0..2 at 10368
#   b4 live 0..1 at 0
#   b5 live 0..2 at 5760
