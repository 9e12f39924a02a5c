# test fuse
# Pointwise operators that follow each other are one loop; nothing between them has memory.
fx 1.0

graph "g" {
  %x: f32[4, 6] = input "x"
  %b: f32[6] = parameter "b"

  %e: f32[4, 6] = prims.expand(%b, [4, 6])
  %a: f32[4, 6] = prims.add(%x, %e)
  %c: f32[4, 6] = prims.tanh(%a)
  return %c
}
