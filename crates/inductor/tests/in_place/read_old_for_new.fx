# A value that needs the old and the new one: the old one is kept in a temporary's stead.
fx 1.0

graph "reads" {
  %a: f32[4, 6] = buffer "a"

  %new: f32[4, 6] = aten.flip.default(%a, [0, 1])
  %m: f32[4, 1] = aten.sum.dim_IntList(%new, [1], true, none)
  %mixed: f32[4, 6] = aten.mul.Tensor(%a, %m)
  return buffer "a" = %new
  return %mixed
}
