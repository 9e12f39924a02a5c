# test pass cse
# Operands that are equal on this rank may differ on another one, which exchanges both.
fx 1.0

graph "g" {
  %x: f32[2] = input "x"

  %a: f32[2] = prims.neg(%x)
  %b: f32[2] = prims.neg(%x)
  %all: f32[2] = prims.all_reduce(%a, "sum", "self")
  %other: f32[2] = prims.all_reduce(%b, "sum", "self")
  %c: f32[2] = prims.mul(%all, %other)
  return %c
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2] = input "x"
#
#   %a: f32[2] = prims.neg(%x)
#   %all: f32[2] = prims.all_reduce(%a, "sum", "self")
#   %other: f32[2] = prims.all_reduce(%a, "sum", "self")
#   %c: f32[2] = prims.mul(%all, %other)
#   return %c
# }
