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

# expected:
# kir 1.12
# program "sgd"
# buffer b0 "x" f32[8, 6]{6, 1}+0 input 0
# buffer b1 "w" f32[6, 3]{3, 1}+0 input 1
# buffer b2 "y" f32[8, 3]{3, 1}+0 arena
# buffer b3 "loss" f32[]{}+0 output
# buffer b4 "dy" f32[8, 3]{3, 1}+0 arena
# buffer b5 "new" f32[6, 3]{3, 1}+0 view b1
# buffer b6 "dx" f32[8, 6]{6, 1}+0 output
# input "x" b0
# input "w" b1 written
# output "loss" b3[]{}+0
# output "dx" b6[8, 6]{6, 1}+0
# init:
# steps:
# matmul "y_dy" acc f32 from "y", "dy"
#   a b0[8, 6]{6, 1}+0
#   b b1[6, 3]{3, 1}+0
#   epilogue [8, 3]
#     v0: f32 = template
#     v1: f32 = const 2.0
#     v2: f32 = mul v0, v1
#     v3: f32 = store b2[i0, i1], v0
#     v4: f32 = store b4[i0, i1], v2
# loop "fused_square_loss" outer [] from "square", "loss"
#   acc0: f32 sum
#   stage [8, 3]
#     v0: f32 = load b2[i0, i1]
#     v1: f32 = mul v0, v0
#     v2: f32 = reduce acc0, v1
#   stage []
#     v0: f32 = acc0
#     v1: f32 = store b3[], v0
# matmul "dx" acc f32 from "dx"
#   a b4[8, 3]{3, 1}+0
#   b b1[3, 6]{1, 3}+0
#   epilogue [8, 6]
#     v0: f32 = template
#     v1: f32 = store b6[i0, i1], v0
# matmul "dw_step_new" acc f32 from "dw", "step", "new"
#   a b0[6, 8]{1, 6}+0
#   b b4[8, 3]{3, 1}+0
#   epilogue [6, 3]
#     v0: f32 = template
#     v1: f32 = load b1[i0, i1]
#     v2: f32 = const 0.10000000149011612
#     v3: f32 = mul v0, v2
#     v4: f32 = sub v1, v3
#     v5: f32 = store b5[i0, i1], v4
# plan bytes 256:
#   b2 live 0..1 at 0
#   b4 live 0..3 at 128
