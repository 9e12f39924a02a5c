# A slice of one layer of a cache of all layers, in bf16.
fx 1.0

graph "decode" {
  %cache: bf16[3, 2, 16, 4] = buffer "cache"
  %k: bf16[2, 2, 4] = input "k"

  %layer: bf16[2, 16, 4] = aten.select.int(%cache, 0, 1)
  %wide: bf16[2, 16, 4] = aten.slice_scatter.default(%layer, %k, 1, 3, 5, 1)
  %new: bf16[3, 2, 16, 4] = aten.select_scatter.default(%cache, %wide, 0, 1)
  return buffer "cache" = %new
}

# expected:
# kir 1.12
# program "decode"
# buffer b0 "cache" bf16[3, 2, 16, 4]{128, 64, 4, 1}+0 input 0
# buffer b1 "k" bf16[2, 2, 4]{8, 4, 1}+0 input 1
# buffer b2 "new" bf16[3, 2, 16, 4]{128, 64, 4, 1}+0 view b0
# input "cache" b0 written
# input "k" b1
# init:
# steps:
# loop "new" outer [1, 2, 2, 4] from "new"
#   stage []
#     v0: bf16 = load b1[i1, i2, i3]
#     v1: bf16 = store b2[1, i1, i2 + 3, i3], v0
# plan bytes 0:
