# Two dimensions read one vector: they are two loops, not the diagonal.
fx 1.0

graph "two_loops_one_variable" {
  %x: f32[8] = input "x"
  %a: f32[8, 8] = input "a"
  %b: f32[8, 8] = input "b"

  %abs: f32[8] = prims.abs(%x)
  %column: f32[8, 1, 1] = prims.reshape(%abs, [8, 1, 1])
  %wide: f32[16, 8, 1, 8] = prims.expand(%column, [16, 8, 1, 8])
  %wide_1: f32[16, 8, 1, 8] = prims.expand(%abs, [16, 8, 1, 8])
  %add: f32[16, 8, 1, 8]{8, 1, 128, 128} = prims.add(%wide, %wide_1)
  %sub: f32[8, 8] = prims.sub(%a, %b)
  %sum: f32[8] = prims.sum(%sub, [1])
  %sum_1: f32[8, 1] = prims.reshape(%sum, [8, 1])
  %sum_2: f32[8, 8] = prims.expand(%sum_1, [8, 8])
  %slice: f32[8, 1] = prims.slice(%sub, 1, 0, 1, 1)
  %first: f32[8] = prims.reshape(%slice, [8])
  %first_1: f32[8, 8] = prims.expand(%first, [8, 8])
  %max: f32[8, 8] = prims.max(%first_1, %sum_2)
  return %add
  return %abs
  return %max
}
