# test decompose
# The loss of class numbers is the negative logarithm of the softmax at the target, averaged over what is not ignored.
fx 1.0

graph "g" {
  %x: f32[4, 3] = input "x"
  %t: i64[4] = input "t"

  %y: f32[] = aten.cross_entropy_loss.default(%x, %t, none, 1, -100, 0.0)
  return loss %y
}
