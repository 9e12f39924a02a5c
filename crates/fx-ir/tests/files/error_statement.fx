# test error
fx 1.0
graph "g" {
  %x: f32[2] = relu
}

# expected:
# 5:1: expected `(` after `relu`, found `}`
