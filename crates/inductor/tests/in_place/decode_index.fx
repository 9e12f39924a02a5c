# One position of a cache: its elements alone are written, then the whole cache is read.
fx 1.0

graph "decode" {
  %cache: f32[2, 16, 4] = buffer "cache"
  %k: f32[2, 1, 4] = input "k"
  %at: i64[1] = input "at5"
  %q: f32[2, 1, 4] = input "q"

  %new: f32[2, 16, 4] = aten.index_copy.default(%cache, 1, %at, %k)
  %t: f32[2, 4, 16]{64, 1, 4} = aten.transpose.int(%new, 1, 2)
  %scores: f32[2, 1, 16] = aten.bmm.default(%q, %t)
  return buffer "cache" = %new
  return %scores
  return %new
}

# expected:
# kir 1.12
# program "decode"
# site "aten.index_copy.default" "" dim 1
# buffer b0 "cache" f32[2, 16, 4]{64, 4, 1}+0 input 0
# buffer b1 "k" f32[2, 1, 4]{4, 4, 1}+0 input 1
# buffer b2 "at" i64[1]{1}+0 input 2
# buffer b3 "q" f32[2, 1, 4]{4, 4, 1}+0 input 3
# buffer b4 "new" f32[2, 16, 4]{64, 4, 1}+0 view b0
# buffer b5 "scores" f32[2, 1, 16]{16, 16, 1}+0 output
# buffer b6 "new_copy" f32[2, 16, 4]{64, 4, 1}+0 output
# input "cache" b0 written
# input "k" b1
# input "at5" b2
# input "q" b3
# output "scores" b5[2, 1, 16]{16, 16, 1}+0
# output "new" b6[2, 16, 4]{64, 4, 1}+0
# init:
# steps:
# loop "new" outer [2, 1, 4] from "new"
#   stage []
#     v0: f32 = load b1[i0, i1, i2]
#     v1: i64 = load b2[i1]
#     v2: i64 = check v1, [16] at 0
#     v3: f32 = store b4[i0, v2, i2], v0
# matmul "scores" acc f32 from "scores"
#   a b3[2, 1, 4]{4, 4, 1}+0
#   b b4[2, 4, 16]{64, 1, 4}+0
#   epilogue [2, 1, 16]
#     v0: f32 = template
#     v1: f32 = store b5[i0, 0, i2], v0
# loop "new_1" outer [2, 16, 4] from "new"
#   stage []
#     v0: f32 = load b4[i0, i1, i2]
#     v1: f32 = store b6[i0, i1, i2], v0
# plan bytes 0:
