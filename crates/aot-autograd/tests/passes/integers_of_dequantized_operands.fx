# test pass integers inference
# A product of dequantized operands is one of integers, behind which the factors are multiplied.
fx 1.0

graph "g" {
  %w: i8[3, 6] = parameter "w"
  %t: f32[3, 1] = parameter "t"
  %x: u8[4, 6] = input "x"

  %xf: f32[4, 6] = prims.convert(%x, f32)
  %xz: f32[4, 6] = prims.sub(%xf, 7.0)
  %xd: f32[4, 6] = prims.mul(%xz, 0.5)
  %wf: f32[3, 6] = prims.convert(%w, f32)
  %te: f32[3, 6] = prims.expand(%t, [3, 6])
  %wd: f32[3, 6] = prims.mul(%wf, %te)
  %wt: f32[6, 3] = prims.permute(%wd, [1, 0])
  %y: f32[4, 3] = prims.matmul(%xd, %wt)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %w: i8[3, 6] = parameter "w"
#   %t: f32[3, 1] = parameter "t"
#   %x: u8[4, 6] = input "x"
#
#   %y: f32[1, 3] = prims.reshape(%t, [1, 3])
#   %y_1: i8[6, 3] = prims.permute(%w, [1, 0])
#   %y_2: i32[4, 3] = prims.integer_matmul(%x, %y_1, 7)
#   %y_3: f32[4, 3] = prims.convert(%y_2, f32)
#   %y_4: f32[1, 3] = prims.mul(%y, 0.5)
#   %y_5: f32[4, 3] = prims.expand(%y_4, [4, 3])
#   %y_6: f32[4, 3] = prims.mul(%y_3, %y_5)
#   return %y_6
# }
