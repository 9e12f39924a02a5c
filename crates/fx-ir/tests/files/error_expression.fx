# test error
fx 1.0
graph "g" {
  %x: f32[2, (s0 + ] = input "x"
}

# expected:
# 4:14: expected a number or a symbol such as `s0` at `the end`
