# test decompose
#
# One element of each line written into zeros, along the last and along another dimension, and the same into what is not one number.
fx 1.0

graph "one_hot_by_scatter" {
  %x: f32[4, 7] = input "x"
  %i: i64[4, 1] = input "i"
  %j: i64[1, 7] = input "j"

  %zeros: f32[4, 7] = aten.zeros_like.default(%x, none, none, none, none, none)
  %a: f32[4, 7] = aten.scatter.value(%zeros, 1, %i, -1.0)
  %b: f32[4, 7] = aten.mul.Tensor(%a, %x)
  %c: f32[4, 7] = aten.scatter.value(%zeros, 0, %j, 2)
  %d: f32[4, 7] = aten.scatter.value(%x, 1, %i, 3)
  %s: f32[4] = aten.sum.dim_IntList(%b, [1], false, none)
  return %a
  return %b
  return %c
  return %d
  return %s
}

# expected:
# fx 1.1
#
# graph "one_hot_by_scatter" {
#   %x: f32[4, 7] = input "x"
#   %i: i64[4, 1] = input "i"
#   %j: i64[1, 7] = input "j"
#
#   %zeros: f32[4, 7] = prims.full([4, 7], 0.0, f32)
#   %a: f32[4, 1] = prims.full([4, 1], -1.0, f32)
#   %a_1: i64[4, 1] = prims.check(%i, 7, 1) from :::"aten.scatter.value"
#   %a_2: i64[7] = prims.iota(7, 0, 1, i64)
#   %a_3: i64[1, 7] = prims.reshape(%a_2, [1, 7])
#   %a_4: i64[4, 7] = prims.expand(%a_3, [4, 7])
#   %a_5: i64[4, 7] = prims.expand(%a_1, [4, 7])
#   %a_6: bool[4, 7] = prims.eq(%a_4, %a_5)
#   %a_7: f32[4, 7] = prims.expand(%a, [4, 7])
#   %a_8: f32[4, 7] = prims.select(%a_6, %a_7, %zeros)
#   %b: f32[4, 7] = prims.mul(%a_8, %x)
#   %c: f32[1, 7] = prims.full([1, 7], 2.0, f32)
#   %c_1: i64[1, 7] = prims.check(%j, 4, 0) from :::"aten.scatter.value"
#   %c_2: i64[4] = prims.iota(4, 0, 1, i64)
#   %c_3: i64[4, 1] = prims.reshape(%c_2, [4, 1])
#   %c_4: i64[4, 7] = prims.expand(%c_3, [4, 7])
#   %c_5: i64[4, 7] = prims.expand(%c_1, [4, 7])
#   %c_6: bool[4, 7] = prims.eq(%c_4, %c_5)
#   %c_7: f32[4, 7] = prims.expand(%c, [4, 7])
#   %c_8: f32[4, 7] = prims.select(%c_6, %c_7, %zeros)
#   %d: f32[4, 1] = prims.full([4, 1], 3.0, f32)
#   %d_1: f32[4, 7] = prims.scatter(%x, 1, %i, %d, "write") from :::"aten.scatter.value"
#   %s: f32[4] = prims.sum(%b, [1])
#   return %a_8
#   return %b
#   return %c_8
#   return %d_1
#   return %s
# }
