# test decompose
# A negative index counts from the end, which is decided here and not when it runs.
fx 1.0

graph "g" {
  %x: f32[4, 5] = input "x"

  %y: f32[4] = aten.select.int(%x, 1, -2)
  return %y
}
