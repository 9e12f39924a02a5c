# test fuse
# The sum and the largest of the same rows are one walk over memory.
fx 1.0

graph "g" {
  %x: f32[4, 16] = input "x"

  %s: f32[4] = prims.sum(%x, [1])
  %m: f32[4] = prims.amax(%x, [1])
  return %s
  return %m
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[4, 16]{16, 1}+0 input 0
# buffer b1 "s" f32[4]{1}+0 output
# buffer b2 "m" f32[4]{1}+0 output
# input "x" b0
# output "s" b1[4]{1}+0
# output "m" b2[4]{1}+0
# init:
# steps:
# loop "fused_s_m" outer [4] from "s", "m"
#   acc0: f32 sum
#   acc1: f32 max
#   stage [16]
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = reduce acc0, v0
#     v2: f32 = reduce acc1, v0
#   stage []
#     v0: f32 = acc0
#     v1: f32 = store b1[i0], v0
#     v2: f32 = acc1
#     v3: f32 = store b2[i0], v2
# plan bytes 0:
