# test fuse
# The same of a convolution, with a residual that is read in the epilogue.
fx 1.0

graph "g" {
  %x: f32[1, 2, 5, 5] = input "x"
  %r: f32[1, 3, 3, 3] = input "r"
  %w: f32[3, 2, 3, 3] = parameter "w"

  %c: f32[1, 3, 3, 3] = prims.conv(%x, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  %a: f32[1, 3, 3, 3] = prims.add(%c, %r)
  %y: f32[1, 3, 3, 3] = prims.max(%a, 0.0)
  return %y
}
