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
