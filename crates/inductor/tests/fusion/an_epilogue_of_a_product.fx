# test fuse
# What follows a product is computed where the product stores its result.
fx 1.0

graph "g" {
  %x: f32[4, 3] = input "x"
  %w: f32[3, 5] = parameter "w"
  %b: f32[5] = parameter "b"

  %p: f32[4, 5] = prims.matmul(%x, %w)
  %e: f32[4, 5] = prims.expand(%b, [4, 5])
  %a: f32[4, 5] = prims.add(%p, %e)
  %y: f32[4, 5] = prims.max(%a, 0.0)
  return %y
}
