# test pass arithmetic
# `y - (-x) = y + x`, and the cosine does not see a sign.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"
  %y: f32[3] = input "y"

  %n: f32[3] = prims.neg(%x)
  %a: f32[3] = prims.sub(%y, %n)
  %b: f32[3] = prims.cos(%n)
  return %a
  return %b
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#   %y: f32[3] = input "y"
#
#   %a: f32[3] = prims.add(%y, %x)
#   %b: f32[3] = prims.cos(%x)
#   return %a
#   return %b
# }
