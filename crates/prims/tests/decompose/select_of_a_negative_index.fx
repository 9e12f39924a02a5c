# test decompose
# A negative index counts from the end, which is decided here and not when it runs.
fx 1.0

graph "g" {
  %x: f32[4, 5] = input "x"

  %y: f32[4] = aten.select.int(%x, 1, -2)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[4, 5] = input "x"
#
#   %y: f32[4, 1] = prims.slice(%x, 1, 3, 1, 1)
#   %y_1: f32[4] = prims.reshape(%y, [4])
#   return %y_1
# }
