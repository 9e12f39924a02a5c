# A reduction of a slice runs over the slice, not over what it is a slice of.
fx 1.0

graph "reduction_of_a_slice" {
  %x: f32[3, 3, 3] = input "x"

  %pad: f32[3, 3, 5] = prims.pad(%x, [0, 0, 1], [0, 0, 1], [0, 0, 0], 0.5)
  %slice: f32[3, 2, 5] = prims.slice(%pad, 1, 0, 2, 1)
  %amin: f32[3, 5] = prims.amin(%slice, [1])
  return %amin
  return %slice
}
