# test fuse gaps
#
# Two parts of a fused projection keep their strides: gaps between rows. A repeated row is given row-major.
fx 1.0

graph "g" {
  %q: f32[2, 3, 2, 4]{72, 24, 4, 1} = input "q"
  %k: f32[2, 2, 3, 4]{72, 4, 24, 1} = input "k"
  %row: f32[3, 4]{0, 1} = input "row"

  %kt: f32[2, 3, 2, 4] = prims.permute(%k, [0, 2, 1, 3])
  %y: f32[2, 3, 2, 4] = prims.mul(%q, %kt)
  %z: f32[3, 4] = prims.neg(%row)
  return %y
  return %z
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "q" f32[2, 3, 2, 4]{72, 24, 4, 1}+0 input 0
# buffer b1 "k" f32[2, 2, 3, 4]{72, 4, 24, 1}+0 input 1
# buffer b2 "row" f32[3, 4]{4, 1}+0 input 2
# buffer b3 "y" f32[2, 3, 2, 4]{24, 8, 4, 1}+0 output
# buffer b4 "z" f32[3, 4]{4, 1}+0 output
# input "q" b0
# input "k" b1
# input "row" b2
# output "y" b3[2, 3, 2, 4]{24, 8, 4, 1}+0
# output "z" b4[3, 4]{4, 1}+0
# init:
# steps:
# together "y_and_1_more"
# do:
# loop "y" outer [2, 3, 2, 4] from "y"
#   stage []
#     v0: f32 = load b0[i0, i1, i2, i3]
#     v1: f32 = load b1[i0, i2, i1, i3]
#     v2: f32 = mul v0, v1
#     v3: f32 = store b3[i0, i1, i2, i3], v2
# loop "z" outer [3, 4] from "z"
#   stage []
#     v0: f32 = load b2[i0, i1]
#     v1: f32 = neg v0
#     v2: f32 = store b4[i0, i1], v1
# end
# plan bytes 0:
