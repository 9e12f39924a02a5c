fx 1.0

graph "g" {
  %a: f32[3] = input "a"
  %b: f32[4] = buffer "b"

  %s: f32[2]+1 = aten.slice.Tensor(%a, 0, 1, 3, 1)
  aten._foreach_mul_.Scalar([%s, %b], 2.0)
  return %a
}

# expected:
# fx 1.0
#
# graph "g" {
#   %a: f32[3] = input "a"
#   %b: f32[4] = buffer "b"
#
#   %s: f32[2]+1 = aten.slice.Tensor(%a, 0, 1, 3, 1)
#   %_foreach_mul: f32[2]+1, %_foreach_mul_1: f32[4] = aten._foreach_mul.Scalar([%s, %b], 2.0)
#   %a_1: f32[3] = aten.slice_scatter.default(%a, %_foreach_mul, 0, 1, 3, 1)
#   return %a_1
#   return input "a" = %a_1
#   return buffer "b" = %_foreach_mul_1
# }
