# `unsqueeze_` and `detach_` change what the tensor looks like, and write nothing.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"

  %mul: f32[3] = aten.mul.Tensor(%x, 2.0)
  %unsqueeze_: f32[3, 1] = aten.unsqueeze_.default(%mul, 1)
  %detach_: f32[3, 1] = aten.detach_.default(%mul)
  %zero_: f32[3, 1] = aten.zero_.default(%detach_)
  return %unsqueeze_
  return %mul
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#
#   %mul: f32[3] = aten.mul.Tensor(%x, 2.0)
#   %unsqueeze_: f32[3, 1] = aten.unsqueeze.default(%mul, 1)
#   %detach_: f32[3, 1] = aten.detach.default(%unsqueeze_)
#   %zero: f32[3, 1] = aten.zero.default(%detach_)
#   %mul_1: f32[3] = aten.reshape.default(%zero, [3])
#   return %zero
#   return %zero
# }
