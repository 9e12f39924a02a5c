# test fuse
# A permutation and a slice are index arithmetic of whoever reads them.
fx 1.0

graph "g" {
  %x: f32[4, 6] = input "x"

  %t: f32[6, 4] = prims.permute(%x, [1, 0])
  %s: f32[3, 4] = prims.slice(%t, 0, 1, 3, 2)
  %y: f32[3, 4] = prims.exp(%s)
  return %y
}
