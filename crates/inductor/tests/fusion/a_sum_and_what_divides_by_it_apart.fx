# test fuse
# A sum over rows is needed whole before a column can be divided by it: two kernels.
fx 1.0

graph "g" {
  %x: f32[4, 16] = input "x"

  %s: f32[] = prims.sum(%x, [0, 1])
  %e: f32[4, 16] = prims.expand(%s, [4, 16])
  %y: f32[4, 16] = prims.div(%x, %e)
  return %y
}
