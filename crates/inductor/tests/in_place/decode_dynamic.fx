# A slice as long as the input, whose length varies.
fx 1.0

graph "decode" {
  symbol s0 "n" 1..=16 hint 4
  %cache: f32[16, 4] = buffer "cache"
  %k: f32[s0, 4] = input "k"

  %new: f32[16, 4] = aten.slice_scatter.default(%cache, %k, 0, 0, s0, 1)
  return buffer "cache" = %new
}

# expected:
# kir 1.12
# program "decode"
# symbol s0 "n" 1..=16 hint 4
# buffer b0 "cache" f32[16, 4]{4, 1}+0 input 0
# buffer b1 "k" f32[s0, 4]{4, 1}+0 input 1
# buffer b2 "new" f32[16, 4]{4, 1}+0 view b0
# input "cache" b0 written
# input "k" b1
# init:
# steps:
# loop "new" outer [s0, 4] from "new"
#   stage []
#     v0: f32 = load b1[i0, i1]
#     v1: f32 = store b2[i0, i1], v0
# plan bytes 0:
