# test partition min-cut 0.0
# Without a budget nothing is saved but what the caller has anyway: products are computed again too.
fx 1.0

graph "g" {
  %x: f32[4, 3] = input "x"
  %w: f32[3, 5] = parameter "w"
  %v: f32[5, 2] = parameter "v"

  %h: f32[4, 5] = prims.matmul(%x, %w)
  %a: f32[4, 5] = prims.tanh(%h)
  %y: f32[4, 2] = prims.matmul(%a, %v)
  %q: f32[4, 2] = prims.mul(%y, %y)
  %l: f32[] = prims.sum(%q, [0, 1])
  return loss %l
}
