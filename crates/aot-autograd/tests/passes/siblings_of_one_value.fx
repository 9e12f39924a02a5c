# test pass siblings device
# Three layers that read one value are one product with their weights side by side, which are put together once.
fx 1.0

graph "g" {
  %wq: f32[4, 6] = parameter "wq"
  %wk: f32[2, 6] = parameter "wk"
  %wv: f32[2, 6] = parameter "wv"
  %x: f32[12, 6] = input "x"

  %q1: f32[6, 4] = prims.permute(%wq, [1, 0])
  %q: f32[12, 4] = prims.matmul(%x, %q1)
  %k1: f32[6, 2] = prims.permute(%wk, [1, 0])
  %k: f32[12, 2] = prims.matmul(%x, %k1)
  %v1: f32[6, 2] = prims.permute(%wv, [1, 0])
  %v: f32[12, 2] = prims.matmul(%x, %v1)
  %kt: f32[2, 12] = prims.permute(%k, [1, 0])
  %s: f32[2, 2] = prims.matmul(%kt, %v)
  %y: f32[12, 4] = prims.tanh(%q)
  return %s
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %wq: f32[4, 6] = parameter "wq"
#   %wk: f32[2, 6] = parameter "wk"
#   %wv: f32[2, 6] = parameter "wv"
#   %x: f32[12, 6] = input "x"
#
#   %q: f32[8, 6] = prims.cat([%wq, %wk, %wv], 0)
#   %q_1: f32[6, 8] = prims.permute(%q, [1, 0])
#   %q_2: f32[12, 8] = prims.matmul(%x, %q_1)
#   %q_3: f32[12, 4] = prims.slice(%q_2, 1, 0, 4, 1)
#   %q_4: f32[12, 2] = prims.slice(%q_2, 1, 4, 2, 1)
#   %q_5: f32[12, 2] = prims.slice(%q_2, 1, 6, 2, 1)
#   %kt: f32[2, 12] = prims.permute(%q_4, [1, 0])
#   %s: f32[2, 2] = prims.matmul(%kt, %q_5)
#   %y: f32[12, 4] = prims.tanh(%q_3)
#   return %s
#   return %y
# }
