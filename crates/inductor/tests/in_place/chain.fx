# Two positions, one after the other; what lies between reads the value between.
fx 1.0

graph "chain" {
  %cache: f32[6, 4] = buffer "cache"
  %a: f32[1, 4] = input "a"
  %b: f32[1, 4] = input "b"
  %i: i64[1] = input "at2"
  %j: i64[1] = input "at4"

  %one: f32[6, 4] = aten.index_copy.default(%cache, 0, %i, %a)
  %between: f32[6] = aten.sum.dim_IntList(%one, [1], false, none)
  %two: f32[6, 4] = aten.index_add.default(%one, 0, %j, %b, 1)
  return buffer "cache" = %two
  return %between
}
