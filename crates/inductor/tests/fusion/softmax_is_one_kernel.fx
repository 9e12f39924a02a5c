# test fuse
# Two reductions of a row and what follows them are stages of one kernel.
fx 1.0

graph "g" {
  %x: f32[4, 5] = input "x"

  %m: f32[4] = prims.amax(%x, [1])
  %m1: f32[4, 1] = prims.reshape(%m, [4, 1])
  %me: f32[4, 5] = prims.expand(%m1, [4, 5])
  %d: f32[4, 5] = prims.sub(%x, %me)
  %e: f32[4, 5] = prims.exp(%d)
  %s: f32[4] = prims.sum(%e, [1])
  %s1: f32[4, 1] = prims.reshape(%s, [4, 1])
  %se: f32[4, 5] = prims.expand(%s1, [4, 5])
  %y: f32[4, 5] = prims.div(%e, %se)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[4, 5]{5, 1}+0 input 0
# buffer b1 "e" f32[4, 5]{5, 1}+0 arena
# buffer b2 "y" f32[4, 5]{5, 1}+0 output
# input "x" b0
# output "y" b2[4, 5]{5, 1}+0
# init:
# steps:
# loop "fused_m_d_e_s_y" outer [4] from "m", "d", "e", "s", "y"
#   acc0: f32 max
#   acc1: f32 sum
#   stage [5]
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = reduce acc0, v0
#   stage [5]
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = acc0
#     v2: f32 = sub v0, v1
#     v3: f32 = exp v2
#     v4: f32 = reduce acc1, v3
#     v5: f32 = store b1[i0, i1], v3
#   stage [5]
#     v0: f32 = load b1[i0, i1]
#     v1: f32 = acc1
#     v2: f32 = div v0, v1
#     v3: f32 = store b2[i0, i1], v2
# plan bytes 128:
#   b1 live 0..0 at 0
