# test fuse
# Two results over the same points are stored by one loop, which reads their operand once.
fx 1.0

graph "g" {
  %x: f32[8] = input "x"

  %s: f32[8] = prims.sin(%x)
  %c: f32[8] = prims.cos(%x)
  return %s
  return %c
}
