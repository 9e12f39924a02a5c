# test fuse
# A permutation and a slice are index arithmetic of whoever reads them.
fx 1.0

graph "g" {
  %x: f32[4, 6] = input "x"

  %t: f32[6, 4] = prims.permute(%x, [1, 0])
  %s: f32[3, 4] = prims.slice(%t, 0, 1, 3, 2)
  %y: f32[3, 4] = prims.exp(%s)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[4, 6]{6, 1}+0 input 0
# buffer b1 "y" f32[3, 4]{4, 1}+0 output
# input "x" b0
# output "y" b1[3, 4]{4, 1}+0
# init:
# steps:
# loop "y" outer [4, 3] from "y"
#   stage []
#     v0: f32 = load b0[i0, 2*i1 + 1]
#     v1: f32 = exp v0
#     v2: f32 = store b1[i1, i0], v1
# plan bytes 0:
