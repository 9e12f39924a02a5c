# `resize_` to fewer elements sees the first of them; to more it is refused.
fx 1.0

graph "g" {
  %x: f32[2, 3] = input "x"

  %neg: f32[2, 3] = aten.neg.default(%x)
  %resize_: f32[4] = aten.resize_.default(%neg, [4], none)
  %fill_: f32[4] = aten.fill_.Scalar(%resize_, 0.0)
  return %neg
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3] = input "x"
#
#   %neg: f32[2, 3] = aten.neg.default(%x)
#   %resize_: f32[4] = aten.as_strided.default(%neg, [4], [1], 0)
#   %fill: f32[4] = aten.fill.Scalar(%resize_, 0.0)
#   %neg_1: f32[2, 3] = aten.as_strided_scatter.default(%neg, %fill, [4], [1], 0)
#   return %fill
# }
