# test fuse on-device
# Scores in f32 of operands that are widened first are a product of the 16-bit floats; a product of which one operand is f32 is not.
fx 1.0

graph "g" {
  %q: bf16[2, 5, 4] = input "q"
  %k: bf16[2, 6, 4] = input "k"
  %x: f32[2, 6, 3] = input "x"

  %qw: f32[2, 5, 4] = prims.convert(%q, f32)
  %kw: f32[2, 6, 4] = prims.convert(%k, f32)
  %kt: f32[2, 4, 6] = prims.permute(%kw, [0, 2, 1])
  %s: f32[2, 5, 6] = prims.matmul(%qw, %kt)
  %y: f32[2, 5, 3] = prims.matmul(%s, %x)
  %z: f32[2, 4, 3] = prims.matmul(%kt, %x)
  return %y
  return %z
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "q" bf16[2, 5, 4]{20, 4, 1}+0 input 0
# buffer b1 "k" bf16[2, 6, 4]{24, 4, 1}+0 input 1
# buffer b2 "x" f32[2, 6, 3]{18, 3, 1}+0 input 2
# buffer b3 "kw" f32[2, 6, 4]{24, 4, 1}+0 arena
# buffer b4 "s" f32[2, 5, 6]{30, 6, 1}+0 arena
# buffer b5 "y" f32[2, 5, 3]{15, 3, 1}+0 output
# buffer b6 "z" f32[2, 4, 3]{12, 3, 1}+0 output
# input "q" b0
# input "k" b1
# input "x" b2
# output "y" b5[2, 5, 3]{15, 3, 1}+0
# output "z" b6[2, 4, 3]{12, 3, 1}+0
# init:
# steps:
# loop "kw" outer [2, 6, 4] from "kw"
#   stage []
#     v0: bf16 = load b1[i0, i1, i2]
#     v1: f32 = cast v0
#     v2: f32 = store b3[i0, i1, i2], v1
# matmul "s" acc f32 from "s"
#   a b0[2, 5, 4]{20, 4, 1}+0
#   b b1[2, 4, 6]{24, 1, 4}+0
#   epilogue [2, 5, 6]
#     v0: f32 = template
#     v1: f32 = store b4[i0, i1, i2], v0
# together "y_and_1_more"
# do:
# matmul "y" acc f32 from "y"
#   a b4[2, 5, 6]{30, 6, 1}+0
#   b b2[2, 6, 3]{18, 3, 1}+0
#   epilogue [2, 5, 3]
#     v0: f32 = template
#     v1: f32 = store b5[i0, i1, i2], v0
# matmul "z" acc f32 from "z"
#   a b3[2, 4, 6]{24, 1, 4}+0
#   b b2[2, 6, 3]{18, 3, 1}+0
#   epilogue [2, 4, 3]
#     v0: f32 = template
#     v1: f32 = store b6[i0, i1, i2], v0
# end
# plan bytes 448:
#   b3 live 0..2 at 256
#   b4 live 1..2 at 0
