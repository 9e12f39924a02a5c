# test fuse
# A size that only a call tells is the extent of the loop; one kernel serves all of its range.
fx 1.0

graph "g" {
  symbol s0 "batch" 1..=64 hint 4
  %x: f32[s0, 3] = input "x"

  %y: f32[s0, 3] = prims.exp(%x)
  %z: f32[s0] = prims.sum(%y, [1])
  return %z
}
