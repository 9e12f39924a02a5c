# Two buffers exchange their values: one of them has to wait in a temporary where no kernel does both.
fx 1.0

graph "swap" {
  %a: f32[256, 128] = buffer "a"
  %b: f32[256, 128] = buffer "b"

  return buffer "a" = %b
  return buffer "b" = %a
}
