# The gradients of attention in 16 bits: rows that see nothing add nothing.
fx 1.0

graph "attention_gradient_of_halves" {
  symbol s0 "keys" 1..=40 hint 33
  %q: bf16[2, 6, 19, 13] = input "q"
  %k: bf16[2, 3, s0, 13] = input "k"
  %v: bf16[2, 3, s0, 8] = input "v"
  %g: bf16[2, 6, 19, 8] = input "g"
  %m: bool[2, 1, 19, s0] = input "m"

  %y: bf16[2, 6, 19, 8], %sums: f32[2, 6, 19] = prims.attention(%q, %k, %v, %m, false, 0.25, none, 1.0)
  %yw: f32[2, 6, 19, 8] = prims.convert(%y, f32)
  %gw: f32[2, 6, 19, 8] = prims.convert(%g, f32)
  %p: f32[2, 6, 19, 8] = prims.mul(%yw, %gw)
  %d: f32[2, 6, 19] = prims.sum(%p, [3])
  %dq: bf16[2, 6, 19, 13], %dk: bf16[2, 3, s0, 13], %dv: bf16[2, 3, s0, 8] = prims.attention_backward(%g, %q, %k, %v, %sums, %d, %m, false, 0.25, none, 1.0)
  return %dq
  return %dk
  return %dv
}
