# test pass arithmetic
# Up to float64 and back loses nothing; down to bfloat16 and back does, so it stays.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"

  %u: f64[3] = prims.convert(%x, f64)
  %a: f32[3] = prims.convert(%u, f32)
  %d: bf16[3] = prims.convert(%x, bf16)
  %b: f32[3] = prims.convert(%d, f32)
  return %a
  return %b
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#
#   %d: bf16[3] = prims.convert(%x, bf16)
#   %b: f32[3] = prims.convert(%d, f32)
#   return %x
#   return %b
# }
