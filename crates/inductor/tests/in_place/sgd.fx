# A layer's forward, backward and update: the product of the gradient writes the weight in its epilogue.
fx 1.0

graph "sgd" {
  %x: f32[8, 6] = input "x"
  %w: f32[6, 3] = buffer "w"

  %y: f32[8, 3] = aten.mm.default(%x, %w)
  %square: f32[8, 3] = aten.mul.Tensor(%y, %y)
  %loss: f32[] = aten.sum.default(%square, none)
  %dy: f32[8, 3] = aten.mul.Scalar(%y, 2.0)
  %xt: f32[6, 8]{1, 6} = aten.t.default(%x)
  %dw: f32[6, 3] = aten.mm.default(%xt, %dy)
  %step: f32[6, 3] = aten.mul.Scalar(%dw, 0.1)
  %new: f32[6, 3] = aten.sub.Tensor(%w, %step, 1)
  %wt: f32[3, 6]{1, 3} = aten.t.default(%w)
  %dx: f32[8, 6] = aten.mm.default(%dy, %wt)
  return loss %loss
  return buffer "w" = %new
  return %dx
}
