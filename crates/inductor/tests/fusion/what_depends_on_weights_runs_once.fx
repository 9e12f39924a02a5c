# test fuse
# What is made of weights alone goes to the steps that run when they are bound.
fx 1.0

graph "g" {
  %x: f32[4] = input "x"
  %w: f32[4] = parameter "w"

  %e: f32[4] = prims.exp(%w)
  %y: f32[4] = prims.mul(%x, %e)
  return %y
}
