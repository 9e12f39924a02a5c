# test fuse
# Two results over the same points that do not depend on each other are two loops of one step, which may run at once.
fx 1.0

graph "g" {
  %x: f32[8] = input "x"

  %s: f32[8] = prims.sin(%x)
  %c: f32[8] = prims.cos(%x)
  return %s
  return %c
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[8]{1}+0 input 0
# buffer b1 "s" f32[8]{1}+0 output
# buffer b2 "c" f32[8]{1}+0 output
# input "x" b0
# output "s" b1[8]{1}+0
# output "c" b2[8]{1}+0
# init:
# steps:
# together "s_and_1_more"
# do:
# loop "s" outer [8] from "s"
#   stage []
#     v0: f32 = load b0[i0]
#     v1: f32 = sin v0
#     v2: f32 = store b1[i0], v1
# loop "c" outer [8] from "c"
#   stage []
#     v0: f32 = load b0[i0]
#     v1: f32 = cos v0
#     v2: f32 = store b2[i0], v1
# end
# plan bytes 0:
