# Two selections that the program takes for as long as each other bind one size, and a value for each place of a mask is put back.
fx 1.0

graph "selections" {
  symbol s0 "s" 1..=64 hint 9
  symbol s1 "u0" 0.. unbacked
  symbol s2 "n2" 0.. unbacked
  symbol s3 "n3" 0.. unbacked
  %x: f32[s0] = input "x"
  %y: f32[s0] = input "y"
  %m: bool[s0] = input "m"

  %a: i64[s0] = prims.convert(%m, i64)
  %a_1: i64[] = prims.sum(%a, [0])
  %a_2: int(s1) = prims.item(%a_1)
  %a_3: i64[s0] = prims.cumsum(%a, 0)
  %a_4: i64[s0] = prims.sub(%a_3, 1)
  %a_5: i64[s0] = prims.select(%m, %a_4, s1)
  %a_6: i64[s0] = prims.iota(s0, 0, 1, i64)
  %a_7: i64[s1 + 1] = prims.full([s1 + 1], 0, i64)
  %a_8: i64[s1 + 1] = prims.index_put(%a_7, [%a_5], 0, %a_6, "write")
  %a_9: i64[s1] = prims.slice(%a_8, 0, 0, s1, 1)
  %a_10: f32[s1] = prims.index(%x, [%a_9], 0)
  %b: i64[s0] = prims.convert(%m, i64)
  %b_1: i64[] = prims.sum(%b, [0])
  %b_2: int(s3) = prims.item(%b_1)
  %b_3: i64[s0] = prims.cumsum(%b, 0)
  %b_4: i64[s0] = prims.sub(%b_3, 1)
  %b_5: i64[s0] = prims.select(%m, %b_4, s1)
  %b_6: i64[s0] = prims.iota(s0, 0, 1, i64)
  %b_7: i64[s1 + 1] = prims.full([s1 + 1], 0, i64)
  %b_8: i64[s1 + 1] = prims.index_put(%b_7, [%b_5], 0, %b_6, "write")
  %b_9: i64[s1] = prims.slice(%b_8, 0, 0, s1, 1)
  %b_10: f32[s1] = prims.index(%y, [%b_9], 0)
  %b_11: i64[] = prims.full([], s3, i64)
  %b_12: i64[] = prims.full([], s1, i64)
  %b_13: bool[] = prims.eq(%b_11, %b_12)
  prims.assert(%b_13, "two sizes that the program takes for one differ: `s3` and `s1`")
  %c: f32[s1] = prims.mul(%a_10, %b_10)
  %d: f32[s1 + 1] = prims.pad(%c, [0], [1], [0], 0.0)
  %d_1: i64[s0] = prims.convert(%m, i64)
  %d_2: i64[s0] = prims.cumsum(%d_1, 0)
  %d_3: i64[] = prims.sum(%d_1, [0])
  %d_4: bool[] = prims.eq(%d_3, s1)
  prims.assert(%d_4, "as many values as the mask has places are wanted")
  %d_5: i64[s0] = prims.sub(%d_2, 1)
  %d_6: i64[s0] = prims.max(%d_5, 0)
  %d_7: i64[s0] = prims.min(%d_6, s1)
  %d_8: f32[s0] = prims.index(%d, [%d_7], 0)
  %d_9: f32[s0] = prims.select(%m, %d_8, %x)
  return %c
  return %d_9
}
