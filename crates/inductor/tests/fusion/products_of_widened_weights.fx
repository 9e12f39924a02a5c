# test fuse on-device
# A product of widened weights is computed once, and so is what it reads where that has no strides.
fx 1.0

graph "g" {
  %a: bf16[4, 6] = parameter "a"
  %b: bf16[2, 3, 5] = parameter "b"
  %x: f32[4, 5] = input "x"

  %aw: f32[4, 6] = prims.convert(%a, f32)
  %bw: f32[2, 3, 5] = prims.convert(%b, f32)
  %bp: f32[3, 2, 5] = prims.permute(%bw, [1, 0, 2])
  %br: f32[6, 5] = prims.reshape(%bp, [6, 5])
  %s: f32[4, 5] = prims.matmul(%aw, %br)
  %y: f32[4, 5] = prims.add(%s, %x)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "a" bf16[4, 6]{6, 1}+0 constant 0
# buffer b1 "b" bf16[2, 3, 5]{15, 5, 1}+0 constant 1
# buffer b2 "x" f32[4, 5]{5, 1}+0 input 0
# buffer b3 "br_copy" bf16[6, 5]{5, 1}+0 persistent
# buffer b4 "s" f32[4, 5]{5, 1}+0 persistent
# buffer b5 "y" f32[4, 5]{5, 1}+0 output
# input "x" b2
# constant "a" b0
# constant "b" b1
# output "y" b5[4, 5]{5, 1}+0
# init:
# loop "br" outer [6, 5] from "br"
#   stage []
#     v0: bf16 = load b1[i0 % 2, i0 // 2, i1]
#     v1: bf16 = store b3[i0, i1], v0
# matmul "s" acc f32 from "s"
#   a b0[4, 6]{6, 1}+0
#   b b3[6, 5]{5, 1}+0
#   epilogue [4, 5]
#     v0: f32 = template
#     v1: f32 = store b4[i0, i1], v0
# steps:
# loop "y" outer [4, 5] from "y"
#   stage []
#     v0: f32 = load b4[i0, i1]
#     v1: f32 = load b2[i0, i1]
#     v2: f32 = add v0, v1
#     v3: f32 = store b5[i0, i1], v2
# plan bytes 0:
