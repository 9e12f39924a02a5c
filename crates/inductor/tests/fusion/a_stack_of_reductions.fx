# test fuse
# Sums and a product of a symbolic batch are computed where a stack of them is returned.
fx 1.0

graph "g" {
  symbol s0 "batch" 1..=64 hint 3
  %x: f32[s0, 8, 5] = input "x"
  %y: f32[s0, 5] = input "y"
  %w: f32[5, 8] = parameter "w"

  %a: f32[s0, 8] = prims.sum(%x, [2])
  %b: f32[s0, 8] = prims.matmul(%y, %w)
  %br: f32[s0, 8] = prims.max(%b, 0.0)
  %au: f32[s0, 1, 8] = prims.reshape(%a, [s0, 1, 8])
  %bu: f32[s0, 1, 8] = prims.reshape(%br, [s0, 1, 8])
  %c: f32[s0, 2, 8] = prims.cat([%au, %bu], 1)
  return %c
}

# expected:
# kir 1.12
# program "g"
# symbol s0 "batch" 1..=64 hint 3
# buffer b0 "x" f32[s0, 8, 5]{40, 5, 1}+0 input 0
# buffer b1 "y" f32[s0, 5]{5, 1}+0 input 1
# buffer b2 "w" f32[5, 8]{8, 1}+0 constant 0
# buffer b3 "c" f32[s0, 2, 8]{16, 8, 1}+0 output
# buffer b4 "a" f32[s0, 8]{16, 1}+0 view b3
# buffer b5 "br" f32[s0, 8]{16, 1}+8 view b3
# input "x" b0
# input "y" b1
# constant "w" b2
# output "c" b3[s0, 2, 8]{16, 8, 1}+0
# init:
# steps:
# loop "a" outer [s0, 8] from "a"
#   acc0: f32 sum
#   stage [5]
#     v0: f32 = load b0[i0, i1, i2]
#     v1: f32 = reduce acc0, v0
#   stage []
#     v0: f32 = acc0
#     v1: f32 = store b4[i0, i1], v0
# matmul "b_br" acc f32 from "b", "br"
#   a b1[s0, 5]{5, 1}+0
#   b b2[5, 8]{8, 1}+0
#   epilogue [s0, 8]
#     v0: f32 = template
#     v1: f32 = const 0.0
#     v2: f32 = max v0, v1
#     v3: f32 = store b5[i0, i1], v2
# plan bytes 0:
