# A concatenation of products, of the old value of a buffer and of its new one: the products are stored in it, the others are
# copied, and the new value is in the buffer.
fx 1.0

graph "parts" {
  %state: f32[4, 8] = buffer "state"
  %x: f32[4, 8] = input "x"
  %w: f32[8, 8] = input "w"

  %p: f32[4, 8] = aten.mm.default(%x, %w)
  %q: f32[4, 8] = aten.mm.default(%p, %w)
  %r: f32[4, 8] = aten.mm.default(%q, %w)
  %sum: f32[4, 8] = aten.add.Tensor(%state, %r, 1)
  %new: f32[4, 8] = aten.tanh.default(%sum)
  %all: f32[4, 40] = aten.cat.default([%p, %q, %r, %state, %new], 1)
  %turned: f32[40, 4] = aten.permute.default(%all, [1, 0])
  %y: f32[4, 4] = aten.mm.default(%all, %turned)
  return buffer "state" = %new
  return %y
}

# expected:
# kir 1.12
# program "parts"
# buffer b0 "state" f32[4, 8]{8, 1}+0 input 0
# buffer b1 "x" f32[4, 8]{8, 1}+0 input 1
# buffer b2 "w" f32[8, 8]{8, 1}+0 input 2
# buffer b3 "all" f32[4, 40]{40, 1}+0 arena
# buffer b4 "p" f32[4, 8]{40, 1}+0 view b3
# buffer b5 "q" f32[4, 8]{40, 1}+8 view b3
# buffer b6 "r" f32[4, 8]{40, 1}+16 view b3
# buffer b7 "new" f32[4, 8]{8, 1}+0 arena
# buffer b8 "all_part" f32[4, 16]{40, 1}+24 view b3
# buffer b9 "y" f32[4, 4]{4, 1}+0 output
# buffer b10 "state_new" f32[4, 8]{8, 1}+0 view b0
# input "state" b0 written
# input "x" b1
# input "w" b2
# output "y" b9[4, 4]{4, 1}+0
# init:
# steps:
# matmul "p" acc f32 from "p"
#   a b1[4, 8]{8, 1}+0
#   b b2[8, 8]{8, 1}+0
#   epilogue [4, 8]
#     v0: f32 = template
#     v1: f32 = store b4[i0, i1], v0
# matmul "q" acc f32 from "q"
#   a b4[4, 8]{40, 1}+0
#   b b2[8, 8]{8, 1}+0
#   epilogue [4, 8]
#     v0: f32 = template
#     v1: f32 = store b5[i0, i1], v0
# matmul "r_sum_new" acc f32 from "r", "sum", "new"
#   a b5[4, 8]{40, 1}+8
#   b b2[8, 8]{8, 1}+0
#   epilogue [4, 8]
#     v0: f32 = template
#     v1: f32 = load b0[i0, i1]
#     v2: f32 = add v1, v0
#     v3: f32 = tanh v2
#     v4: f32 = store b6[i0, i1], v0
#     v5: f32 = store b7[i0, i1], v3
# loop "all" outer [4, 16] from "all"
#   stage []
#     v0: i64 = index i1
#     v1: i64 = const 8
#     v2: bool = ge v0, v1
#     v3: f32 = load b7[i0, i1 - 8] if v2
#     v4: bool = lt v0, v1
#     v5: f32 = load b0[i0, i1] if v4
#     v6: f32 = select v4, v5, v3
#     v7: f32 = store b8[i0, i1], v6
# matmul "y" acc f32 from "y"
#   a b3[4, 40]{40, 1}+0
#   b b3[40, 4]{1, 40}+0
#   epilogue [4, 4]
#     v0: f32 = template
#     v1: f32 = store b9[i0, i1], v0
# loop "state_new_copy" outer [4, 8]
#   stage []
#     v0: f32 = load b7[i0, i1]
#     v1: f32 = store b10[i0, i1], v0
# plan bytes 768:
#   b3 live 0..4 at 0
#   b7 live 2..5 at 640
