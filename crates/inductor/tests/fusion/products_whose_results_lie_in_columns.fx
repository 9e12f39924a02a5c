# test fuse
# A layer that mixes the positions of each image stores its result, and reads a residual, along columns: the transposed product is
# computed. One that sums over so many elements that turning its rows takes longer than storing them apart stays as it is, and so do
# the others: few rows, and rows of several images that are one product.
fx 1.0

graph "g" {
  %x: f32[2, 20, 64] = input "x"
  %w: f32[24, 20] = parameter "w"
  %b: f32[24] = parameter "b"
  %res: f32[2, 24, 64] = input "res"
  %long: f32[64, 200] = input "long"
  %deep: f32[200, 16] = parameter "deep"
  %rows: f32[2, 64, 20] = input "rows"

  %t: f32[2, 64, 20] = prims.permute(%x, [0, 2, 1])
  %v: f32[20, 24] = prims.permute(%w, [1, 0])
  %v1: f32[1, 20, 24] = prims.reshape(%v, [1, 20, 24])
  %vv: f32[2, 20, 24] = prims.expand(%v1, [2, 20, 24])
  %b1: f32[1, 1, 24] = prims.reshape(%b, [1, 1, 24])
  %bb: f32[2, 64, 24] = prims.expand(%b1, [2, 64, 24])
  %p: f32[2, 64, 24] = prims.matmul(%t, %vv)
  %q: f32[2, 64, 24] = prims.add(%p, %bb)
  %r: f32[2, 24, 64] = prims.permute(%q, [0, 2, 1])
  %s: f32[2, 24, 64] = prims.add(%r, %res)

  %far: f32[64, 16] = prims.matmul(%long, %deep)
  %farther: f32[16, 64] = prims.permute(%far, [1, 0])

  %head: f32[8, 200] = prims.slice(%long, 0, 0, 8, 1)
  %few: f32[8, 16] = prims.matmul(%head, %deep)
  %fewer: f32[16, 8] = prims.permute(%few, [1, 0])

  %one: f32[2, 64, 24] = prims.matmul(%rows, %vv)
  %apart: f32[2, 24, 64] = prims.permute(%one, [0, 2, 1])
  return %s
  return %farther
  return %fewer
  return %apart
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[2, 20, 64]{1280, 64, 1}+0 input 0
# buffer b1 "w" f32[24, 20]{20, 1}+0 constant 0
# buffer b2 "b" f32[24]{1}+0 constant 1
# buffer b3 "res" f32[2, 24, 64]{1536, 64, 1}+0 input 1
# buffer b4 "long" f32[64, 200]{200, 1}+0 input 2
# buffer b5 "deep" f32[200, 16]{16, 1}+0 constant 2
# buffer b6 "rows" f32[2, 64, 20]{1280, 20, 1}+0 input 3
# buffer b7 "s" f32[2, 24, 64]{1536, 64, 1}+0 output
# buffer b8 "farther" f32[16, 64]{64, 1}+0 output
# buffer b9 "fewer" f32[16, 8]{8, 1}+0 output
# buffer b10 "apart" f32[2, 24, 64]{1536, 64, 1}+0 output
# input "x" b0
# input "res" b3
# input "long" b4
# input "rows" b6
# constant "w" b1
# constant "b" b2
# constant "deep" b5
# output "s" b7[2, 24, 64]{1536, 64, 1}+0
# output "farther" b8[16, 64]{64, 1}+0
# output "fewer" b9[16, 8]{8, 1}+0
# output "apart" b10[2, 24, 64]{1536, 64, 1}+0
# init:
# steps:
# matmul "p_q_s" acc f32 from "p", "q", "s"
#   a b1[2, 24, 20]{0, 20, 1}+0
#   b b0[2, 20, 64]{1280, 64, 1}+0
#   epilogue [2, 24, 64]
#     v0: f32 = template
#     v1: f32 = load b2[i1]
#     v2: f32 = add v0, v1
#     v3: f32 = load b3[i0, i1, i2]
#     v4: f32 = add v2, v3
#     v5: f32 = store b7[i0, i1, i2], v4
# matmul "far" acc f32 from "far"
#   a b4[64, 200]{200, 1}+0
#   b b5[200, 16]{16, 1}+0
#   epilogue [64, 16]
#     v0: f32 = template
#     v1: f32 = store b8[i1, i0], v0
# matmul "few" acc f32 from "few"
#   a b4[8, 200]{200, 1}+0
#   b b5[200, 16]{16, 1}+0
#   epilogue [8, 16]
#     v0: f32 = template
#     v1: f32 = store b9[i1, i0], v0
# matmul "one" acc f32 from "one"
#   a b6[2, 64, 20]{1280, 20, 1}+0
#   b b1[2, 20, 24]{0, 1, 20}+0
#   epilogue [2, 64, 24]
#     v0: f32 = template
#     v1: f32 = store b10[i0, i2, i1], v0
# plan bytes 0:
