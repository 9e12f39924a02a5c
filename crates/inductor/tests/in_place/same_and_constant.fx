# A buffer that keeps its value, and one that is reset.
fx 1.0

graph "reset" {
  %x: f32[3] = input "x"
  %kept: f32[3] = buffer "kept"
  %zero: f32[3] = buffer "zeroed"

  %none: f32[3] = aten.full.default([3], 0.0, f32, none, none, none)
  %y: f32[3] = aten.add.Tensor(%x, %zero, 1)
  return buffer "kept" = %kept
  return buffer "zeroed" = %none
  return %y
}
