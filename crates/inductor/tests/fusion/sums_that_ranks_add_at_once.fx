# test fuse
# The sum between ranks reads the first of both at once; the second is made in the same walk all the same.
fx 1.0

graph "g" {
  %x: f32[4, 16] = input "x"
  %y: f32[4, 16] = input "y"

  %s: f32[16] = prims.sum(%x, [0])
  %a: f32[16] = prims.all_reduce(%s, "sum", "self")
  %p: f32[4, 16] = prims.mul(%x, %y)
  %t: f32[16] = prims.sum(%p, [0])
  %b: f32[16] = prims.all_reduce(%t, "sum", "self")
  return %a
  return %b
}

# expected:
