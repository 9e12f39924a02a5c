# test fuse
# Pointwise operators that follow each other are one loop; nothing between them has memory.
fx 1.0

graph "g" {
  %x: f32[4, 6] = input "x"
  %b: f32[6] = parameter "b"

  %e: f32[4, 6] = prims.expand(%b, [4, 6])
  %a: f32[4, 6] = prims.add(%x, %e)
  %c: f32[4, 6] = prims.tanh(%a)
  return %c
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[4, 6]{6, 1}+0 input 0
# buffer b1 "b" f32[6]{1}+0 constant 0
# buffer b2 "c" f32[4, 6]{6, 1}+0 output
# input "x" b0
# constant "b" b1
# output "c" b2[4, 6]{6, 1}+0
# init:
# steps:
# loop "fused_a_c" outer [4, 6] from "a", "c"
#   stage []
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = load b1[i1]
#     v2: f32 = add v0, v1
#     v3: f32 = tanh v2
#     v4: f32 = store b2[i0, i1], v3
# plan bytes 0:
