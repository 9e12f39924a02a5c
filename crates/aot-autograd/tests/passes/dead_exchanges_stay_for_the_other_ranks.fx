# test pass dead
# Another rank may need the result of an exchange that this one does not read.
fx 1.0

graph "g" {
  %x: f32[2] = input "x"

  %all: f32[2] = prims.all_reduce(%x, "sum", "self")
  %y: f32[2] = prims.neg(%x)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2] = input "x"
#
#   %all: f32[2] = prims.all_reduce(%x, "sum", "self")
#   %y: f32[2] = prims.neg(%x)
#   return %y
# }
