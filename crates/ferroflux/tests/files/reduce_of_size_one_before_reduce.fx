# A sum over a dimension of size 1 has no loop: it must not be repeated by the loop of the sum that reads it.
fx 1.0

graph "reduce_of_size_one_before_reduce" {
  symbol s0 "s" 1..=64 hint 4
  %x: f32[1, 8, 3, 3] = input "x"
  %y: f32[2, 1, s0, s0] = input "y"

  %sum: f32[8, 3, 3] = prims.sum(%x, [0])
  %permute: f32[3, 3, 8] = prims.permute(%sum, [1, 2, 0])
  %sum_1: f32[3, 8] = prims.sum(%permute, [0])
  %sum_2: f32[2, s0, s0] = prims.sum(%y, [1])
  %sum_3: f32[2, s0] = prims.sum(%sum_2, [2])
  %top: i64[8, 3, 3] = prims.argmax(%x, [0])
  %top_1: i64[8, 3] = prims.amax(%top, [2])
  return %sum_1
  return %sum_3
  return %top_1
}
