# test fuse
# What is computed long before the rest of a concatenation is copied when that is there: the whole would live from then on,
# while larger values come and go.
fx 1.0

graph "g" {
  %x: f32[2, 8, 32] = input "x"
  %w: f32[32, 32] = parameter "w"
  %v: f32[32, 256] = parameter "v"
  %u: f32[256, 32] = parameter "u"

  %a: f32[2, 8, 32] = prims.matmul(%x, %w)
  %b: f32[2, 8, 256] = prims.matmul(%a, %v)
  %br: f32[2, 8, 256] = prims.max(%b, 0.0)
  %c: f32[2, 8, 32] = prims.matmul(%br, %u)
  %d: f32[2, 8, 256] = prims.matmul(%c, %v)
  %e: f32[2, 8, 288] = prims.cat([%a, %d], 2)
  %er: f32[2, 8, 288] = prims.max(%e, 0.0)
  %y: f32[2, 288, 8] = prims.permute(%er, [0, 2, 1])
  %z: f32[2, 288, 288] = prims.matmul(%y, %er)
  return %z
}

# expected:
