# test fuse in-place
# The new value of a buffer is stored where the old one was read.
fx 1.0

graph "g" {
  %x: f32[4] = input "x"
  %n: f32[4] = buffer "n"

  %m: f32[4] = prims.mul(%n, 0.9)
  %a: f32[4] = prims.add(%m, %x)
  return buffer "n" = %a
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[4]{1}+0 input 0
# buffer b1 "n" f32[4]{1}+0 input 1
# buffer b2 "a" f32[4]{1}+0 view b1
# input "x" b0
# input "n" b1 written
# init:
# steps:
# loop "fused_m_a" outer [4] from "m", "a"
#   stage []
#     v0: f32 = load b1[i0]
#     v1: f32 = const 0.9
#     v2: f32 = mul v0, v1
#     v3: f32 = load b0[i0]
#     v4: f32 = add v2, v3
#     v5: f32 = store b2[i0], v4
# plan bytes 0:
