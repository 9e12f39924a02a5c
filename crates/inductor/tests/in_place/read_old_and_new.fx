# The old value is read after its successor was made in program order, and that one is read too.
fx 1.0

graph "reads" {
  %a: f32[4, 6] = buffer "a"

  %new: f32[4, 6] = aten.add.Scalar(%a, 1.0, 1)
  %e: f32[4, 6] = aten.exp.default(%new)
  %rows: f32[4] = aten.sum.dim_IntList(%a, [1], false, none)
  %columns: f32[6] = aten.sum.dim_IntList(%new, [0], false, none)
  return buffer "a" = %new
  return %e
  return %rows
  return %columns
  return %a
}
