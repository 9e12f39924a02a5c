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
