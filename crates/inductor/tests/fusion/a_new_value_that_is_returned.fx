# test fuse
# Without in-place writing the new value is an output of the program.
fx 1.0

graph "g" {
  %x: f32[4] = input "x"
  %n: f32[4] = buffer "n"

  %m: f32[4] = prims.mul(%n, 0.9)
  %a: f32[4] = prims.add(%m, %x)
  return buffer "n" = %a
}
