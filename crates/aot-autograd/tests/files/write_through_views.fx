# A write to a row of the transposed buffer shows in the buffer and in a view taken before.
fx 1.0

graph "g" {
  %b: f32[3, 4] = buffer "state"
  %x: f32[3] = input "x"

  %before: f32[12] = aten.view.default(%b, [12])
  %t: f32[4, 3]{1, 4} = aten.transpose.int(%b, 0, 1)
  %row: f32[3]{4}+2 = aten.select.int(%t, 0, 2)
  %copy_: f32[3]{4}+2 = aten.copy_.default(%row, %x, false)
  return %before
  return %copy_
}

# expected:
# fx 1.0
#
# graph "g" {
#   %b: f32[3, 4] = buffer "state"
#   %x: f32[3] = input "x"
#
#   %before: f32[12] = aten.view.default(%b, [12])
#   %t: f32[4, 3]{1, 4} = aten.transpose.int(%b, 0, 1)
#   %row: f32[3]{4}+2 = aten.select.int(%t, 0, 2)
#   %copy: f32[3]{4}+2 = aten.copy.default(%row, %x, false)
#   %t_1: f32[4, 3]{1, 4} = aten.select_scatter.default(%t, %copy, 0, 2)
#   %b_1: f32[3, 4] = aten.transpose.int(%t_1, 0, 1)
#   %before_1: f32[12] = aten.view.default(%b_1, [12])
#   return %before_1
#   return %copy
#   return buffer "state" = %b_1
# }
