# Without elements there is nothing to divide: no index of the program may hold a division by 0.
fx 1.0

graph "reshape_of_nothing" {
  %x: f32[0, 2] = input "x"
  %w: f32[2, 2] = input "w"

  %y: f32[0, 2] = prims.matmul(%x, %w)
  %z: f32[0, 4, 0, 2] = prims.reshape(%y, [0, 4, 0, 2])
  return %z
}
