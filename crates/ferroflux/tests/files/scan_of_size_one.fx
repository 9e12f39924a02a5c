# A running sum along size 1 is the element; another running sum or reduction may follow.
fx 1.0

graph "scan_of_size_one" {
  symbol s0 "s" 1..=64 hint 4
  %x: f32[1, 2, 1, 2] = input "x"
  %y: f32[s0, 1] = input "y"

  %cumsum: f32[1, 2, 1, 2] = prims.cumsum(%x, 0)
  %sum: f32[1, 1, 2] = prims.sum(%cumsum, [1])
  %row: f32[s0] = prims.sum(%y, [1])
  %column: f32[s0, 1] = prims.reshape(%row, [s0, 1])
  %running: f32[s0, 1] = prims.cumsum(%column, 0)
  return %sum
  return %running
}
