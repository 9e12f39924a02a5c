# test fuse
# What divides by the sum of all elements is a second stage of the kernel that adds them up.
fx 1.0

graph "g" {
  %x: f32[4, 16] = input "x"

  %s: f32[] = prims.sum(%x, [0, 1])
  %e: f32[4, 16] = prims.expand(%s, [4, 16])
  %y: f32[4, 16] = prims.div(%x, %e)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[4, 16]{16, 1}+0 input 0
# buffer b1 "y" f32[4, 16]{16, 1}+0 output
# input "x" b0
# output "y" b1[4, 16]{16, 1}+0
# init:
# steps:
# loop "fused_s_y" outer [] from "s", "y"
#   acc0: f32 sum
#   stage [4, 16]
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = reduce acc0, v0
#   stage [4, 16]
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = acc0
#     v2: f32 = div v0, v1
#     v3: f32 = store b1[i0, i1], v2
# plan bytes 0:
