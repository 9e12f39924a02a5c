# The same, turned: no kernel can do both at one point.
fx 1.0

graph "swap" {
  %a: f32[5, 5] = buffer "a"
  %b: f32[5, 5] = buffer "b"

  %at: f32[5, 5]{1, 5} = aten.t.default(%a)
  %bt: f32[5, 5]{1, 5} = aten.t.default(%b)
  return buffer "a" = %bt
  return buffer "b" = %at
}
