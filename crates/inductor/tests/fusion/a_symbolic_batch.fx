# test fuse
# A size that only a call tells is the extent of the loop; one kernel serves all of its range.
fx 1.0

graph "g" {
  symbol s0 "batch" 1..=64 hint 4
  %x: f32[s0, 3] = input "x"

  %y: f32[s0, 3] = prims.exp(%x)
  %z: f32[s0] = prims.sum(%y, [1])
  return %z
}

# expected:
# kir 1.12
# program "g"
# symbol s0 "batch" 1..=64 hint 4
# buffer b0 "x" f32[s0, 3]{3, 1}+0 input 0
# buffer b1 "z" f32[s0]{1}+0 output
# input "x" b0
# output "z" b1[s0]{1}+0
# init:
# steps:
# loop "fused_y_z" outer [s0] from "y", "z"
#   acc0: f32 sum
#   stage [3]
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = exp v0
#     v2: f32 = reduce acc0, v1
#   stage []
#     v0: f32 = acc0
#     v1: f32 = store b1[i0], v0
# plan bytes 0:
