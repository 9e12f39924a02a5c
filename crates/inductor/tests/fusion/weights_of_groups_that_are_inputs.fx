# test fuse on-device
# The gradient of a grouped convolution joins groups and channels of its weight to one dimension, which has no stride in a copy with the
# channels innermost: the weight is read as it is.
fx 1.0

graph "g" {
  %x: f32[2, 2, 4] = input "x"
  %w: f32[2, 2, 3] = input "w"

  %s: f32[2, 1, 2, 3] = prims.reshape(%w, [2, 1, 2, 3])
  %t: f32[2, 2, 1, 3] = prims.permute(%s, [0, 2, 1, 3])
  %j: f32[4, 1, 3] = prims.reshape(%t, [4, 1, 3])
  %f: f32[4, 1, 3] = prims.slice(%j, 2, 2, 3, -1)
  %d: f32[2, 4, 8] = prims.conv(%x, %f, [1], [3, 5], [2], false, [0], 2)
  return %d
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[2, 2, 4]{8, 4, 1}+0 input 0
# buffer b1 "w" f32[2, 2, 3]{6, 3, 1}+0 input 1
# buffer b2 "d" f32[2, 4, 8]{32, 8, 1}+0 output
# input "x" b0
# input "w" b1
# output "d" b2[2, 4, 8]{32, 8, 1}+0
# init:
# steps:
# conv "d" acc f32 from "d"
#   input b0[2, 2, 4]{8, 4, 1}+0
#   weight b1[4, 1, 3]{3, 0, -1}+2
#   window stride [1] padding [(3, 5)] dilation [2] groups 2
#   epilogue [2, 4, 8]
#     v0: f32 = template
#     v1: f32 = store b2[i0, i1, i2], v0
# plan bytes 0:
