# test fuse
# Where rows of two sources are concatenated a condition on the column says whether an index is read, not which: the gathered rows stay
# rows.
fx 1.0

graph "g" {
  %x: f32[2, 10, 6] = input "x"
  %n: i64[2, 1, 1] = input "n"
  %i: i64[2, 10, 3] = input "i"
  %w: f32[4, 12, 1, 1] = input "w"

  %m: i64[2, 10, 3] = prims.expand(%n, [2, 10, 3])
  %r: f32[2, 10, 3, 6] = prims.index(%x, [%m, %i], 0)
  %s: f32[2, 10, 1, 6] = prims.reshape(%x, [2, 10, 1, 6])
  %e: f32[2, 10, 3, 6] = prims.expand(%s, [2, 10, 3, 6])
  %h: f32[2, 10, 3, 12] = prims.cat([%r, %e], 3)
  %t: f32[2, 12, 10, 3] = prims.permute(%h, [0, 3, 1, 2])
  %u: f32[2, 12, 10, 3] = prims.exp(%t)
  %y: f32[2, 4, 10, 3] = prims.conv(%u, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  return %y
}
