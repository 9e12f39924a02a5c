# test fuse
# What is made of weights alone goes to the steps that run when they are bound.
fx 1.0

graph "g" {
  %x: f32[4] = input "x"
  %w: f32[4] = parameter "w"

  %e: f32[4] = prims.exp(%w)
  %y: f32[4] = prims.mul(%x, %e)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[4]{1}+0 input 0
# buffer b1 "w" f32[4]{1}+0 constant 0
# buffer b2 "e" f32[4]{1}+0 persistent
# buffer b3 "y" f32[4]{1}+0 output
# input "x" b0
# constant "w" b1
# output "y" b3[4]{1}+0
# init:
# loop "e" outer [4] from "e"
#   stage []
#     v0: f32 = load b1[i0]
#     v1: f32 = exp v0
#     v2: f32 = store b2[i0], v1
# steps:
# loop "y" outer [4] from "y"
#   stage []
#     v0: f32 = load b0[i0]
#     v1: f32 = load b2[i0]
#     v2: f32 = mul v0, v1
#     v3: f32 = store b3[i0], v2
# plan bytes 0:
