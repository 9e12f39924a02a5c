# test decompose
# Of `addmm` the factors beta and alpha are multiplications; a factor of 1 is none.
fx 1.0

graph "g" {
  %c: f32[2] = input "c"
  %x: f32[4, 3] = input "x"
  %w: f32[3, 2] = input "w"

  %y: f32[4, 2] = aten.addmm.default(%c, %x, %w, 0.5, 1)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %c: f32[2] = input "c"
#   %x: f32[4, 3] = input "x"
#   %w: f32[3, 2] = input "w"
#
#   %y: f32[4, 2] = prims.matmul(%x, %w)
#   %y_1: f32[2] = prims.mul(%c, 0.5)
#   %y_2: f32[4, 2] = prims.expand(%y_1, [4, 2])
#   %y_3: f32[4, 2] = prims.add(%y, %y_2)
#   return %y_3
# }
