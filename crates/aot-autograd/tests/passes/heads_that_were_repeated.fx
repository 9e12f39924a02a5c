# test pass heads
# Each head of keys and values serves three heads of queries, which the attention knows without copies.
fx 1.0

graph "g" {
  %q: f32[2, 6, 5, 4] = input "q"
  %k: f32[2, 2, 5, 4] = input "k"
  %v: f32[2, 2, 5, 4] = input "v"

  %k1: f32[2, 2, 1, 5, 4] = prims.reshape(%k, [2, 2, 1, 5, 4])
  %k2: f32[2, 2, 3, 5, 4] = prims.expand(%k1, [2, 2, 3, 5, 4])
  %k3: f32[2, 6, 5, 4] = prims.reshape(%k2, [2, 6, 5, 4])
  %v1: f32[2, 2, 1, 5, 4] = prims.reshape(%v, [2, 2, 1, 5, 4])
  %v2: f32[2, 2, 3, 5, 4] = prims.expand(%v1, [2, 2, 3, 5, 4])
  %v3: f32[2, 6, 5, 4] = prims.reshape(%v2, [2, 6, 5, 4])
  %y: f32[2, 6, 5, 4], %s: f32[2, 6, 5] = prims.attention(%q, %k3, %v3, none, true, 0.5, none, 1.0)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %q: f32[2, 6, 5, 4] = input "q"
#   %k: f32[2, 2, 5, 4] = input "k"
#   %v: f32[2, 2, 5, 4] = input "v"
#
#   %y: f32[2, 6, 5, 4], %s: f32[2, 6, 5] = prims.attention(%q, %k, %v, none, true, 0.5, none, 1.0)
#   return %y
# }
