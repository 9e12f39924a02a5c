# A slice of a cache: a loop over the slice.
fx 1.0

graph "decode" {
  %cache: f32[2, 16, 4] = buffer "cache"
  %k: f32[2, 2, 4] = input "k"

  %twice: f32[2, 2, 4] = aten.mul.Scalar(%k, 2.0)
  %new: f32[2, 16, 4] = aten.slice_scatter.default(%cache, %twice, 1, 3, 5, 1)
  %sum: f32[2, 4] = aten.sum.dim_IntList(%new, [1], false, none)
  return buffer "cache" = %new
  return %sum
}

# expected:
# kir 1.12
# program "decode"
# buffer b0 "cache" f32[2, 16, 4]{64, 4, 1}+0 input 0
# buffer b1 "k" f32[2, 2, 4]{8, 4, 1}+0 input 1
# buffer b2 "new" f32[2, 16, 4]{64, 4, 1}+0 view b0
# buffer b3 "sum" f32[2, 4]{4, 1}+0 output
# input "cache" b0 written
# input "k" b1
# output "sum" b3[2, 4]{4, 1}+0
# init:
# steps:
# loop "new" outer [2, 2, 4] from "new"
#   stage []
#     v0: f32 = load b1[i0, i1, i2]
#     v1: f32 = const 2.0
#     v2: f32 = mul v0, v1
#     v3: f32 = store b2[i0, i1 + 3, i2], v2
# loop "sum" outer [2, 4] from "sum"
#   acc0: f32 sum
#   stage [16]
#     v0: f32 = load b2[i0, i2, i1]
#     v1: f32 = reduce acc0, v0
#   stage []
#     v0: f32 = acc0
#     v1: f32 = store b3[i0, i1], v0
# plan bytes 0:
