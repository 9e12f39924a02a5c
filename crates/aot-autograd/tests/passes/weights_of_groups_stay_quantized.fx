# test pass weights inference
# A product with dequantized weights keeps them as integers; factors are those of groups of four rows.
fx 1.0

graph "g" {
  %w: i8[3, 8] = parameter "w"
  %t: f32[6, 1] = parameter "t"
  %x: f32[2, 8] = input "x"

  %wr: i8[6, 4] = prims.reshape(%w, [6, 4])
  %wf: f32[6, 4] = prims.convert(%wr, f32)
  %te: f32[6, 4] = prims.expand(%t, [6, 4])
  %wd: f32[6, 4] = prims.mul(%wf, %te)
  %wm: f32[3, 8] = prims.reshape(%wd, [3, 8])
  %wt: f32[8, 3] = prims.permute(%wm, [1, 0])
  %y: f32[2, 3] = prims.matmul(%x, %wt)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %w: i8[3, 8] = parameter "w"
#   %t: f32[6, 1] = parameter "t"
#   %x: f32[2, 8] = input "x"
#
#   %y: f32[3, 2] = prims.reshape(%t, [3, 2])
#   %y_1: f32[2, 3] = prims.permute(%y, [1, 0])
#   %y_2: i8[8, 3] = prims.permute(%w, [1, 0])
#   %y_3: f32[2, 3] = prims.dequantized_matmul(%x, %y_2, %y_1, none)
#   return %y_3
# }
