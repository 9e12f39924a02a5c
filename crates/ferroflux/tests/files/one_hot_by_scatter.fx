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
