# test error
fx 1.0

graph "g" {
  %x: f32[2] = input "x"
  %add: f32[2] = aten.add.Tensor(%x, %y, 1)
}

# expected:
# 6:38: value `%y` is not defined above: define it first, or correct the name
