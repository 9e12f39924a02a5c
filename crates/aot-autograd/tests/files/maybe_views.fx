# `reshape`, `to` and `contiguous` share memory only where nothing has to move; `dropout` outside training always.
fx 1.0

graph "g" {
  %x: f32[2, 3] = input "x"

  %same: f32[6] = aten.reshape.default(%x, [6])
  %t: f32[3, 2]{1, 3} = aten.t.default(%x)
  %moved: f32[6] = aten.reshape.default(%t, [6])
  %half: bf16[2, 3] = aten.to.dtype(%x, bf16, false, false, none)
  %full: f32[2, 3] = aten.to.dtype(%x, f32, false, false, none)
  %drop: f32[2, 3] = aten.dropout.default(%full, 0.5, false)
  %fill_: f32[2, 3] = aten.fill_.Scalar(%drop, 1.0)
  return %same
  return %moved
  return %half
  return %x
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3] = input "x"
#
#   %same: f32[6] = aten.reshape.default(%x, [6])
#   %t: f32[3, 2]{1, 3} = aten.t.default(%x)
#   %moved: f32[6] = aten.reshape.default(%t, [6])
#   %half: bf16[2, 3] = aten.to.dtype(%x, bf16, false, false, none)
#   %full: f32[2, 3] = aten.to.dtype(%x, f32, false, false, none)
#   %drop: f32[2, 3] = aten.dropout.default(%full, 0.5, false)
#   %fill: f32[2, 3] = aten.fill.Scalar(%drop, 1.0)
#   %same_1: f32[6] = aten.reshape.default(%fill, [6])
#   return %same_1
#   return %moved
#   return %half
#   return %fill
#   return input "x" = %fill
# }
