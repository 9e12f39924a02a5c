# The gradients of attention over symbolic sizes, with shared heads of keys, and their sum with what reads its sums.
fx 1.0

graph "attention_gradient" {
  symbol s0 "queries" 0..=80 hint 37
  symbol s1 "keys" 0..=200 hint 150
  %q: f32[2, 4, s0, 24] = input "q"
  %k: f32[2, 2, s1, 24] = input "k"
  %v: f32[2, 2, s1, 16] = input "v"
  %g: f32[2, 4, s0, 16] = input "g"
  %m: f32[s0, s1] = input "m"

  %y: f32[2, 4, s0, 16], %sums: f32[2, 4, s0] = prims.attention(%q, %k, %v, %m, true, 0.2, none, 1.0)
  %p: f32[2, 4, s0, 16] = prims.mul(%y, %g)
  %d: f32[2, 4, s0] = prims.sum(%p, [3])
  %dq: f32[2, 4, s0, 24], %dk: f32[2, 2, s1, 24], %dv: f32[2, 2, s1, 16] = prims.attention_backward(%g, %q, %k, %v, %sums, %d, %m, true, 0.2, none, 1.0)
  %z: f32[2, 4, s0] = prims.tanh(%sums)
  return %dq
  return %dk
  return %dv
  return %z
}
