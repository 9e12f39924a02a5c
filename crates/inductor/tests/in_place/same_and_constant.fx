# A buffer that keeps its value, and one that is reset.
fx 1.0

graph "reset" {
  %x: f32[3] = input "x"
  %kept: f32[3] = buffer "kept"
  %zero: f32[3] = buffer "zeroed"

  %none: f32[3] = aten.full.default([3], 0.0, f32, none, none, none)
  %y: f32[3] = aten.add.Tensor(%x, %zero, 1)
  return buffer "kept" = %kept
  return buffer "zeroed" = %none
  return %y
}

# expected:
# kir 1.12
# program "reset"
# buffer b0 "x" f32[3]{1}+0 input 0
# buffer b1 "kept" f32[3]{1}+0 input 1
# buffer b2 "zero" f32[3]{1}+0 input 2
# buffer b3 "y" f32[3]{1}+0 output
# buffer b4 "none_copy" f32[3]{1}+0 view b2
# input "x" b0
# input "kept" b1
# input "zeroed" b2 written
# output "y" b3[3]{1}+0
# init:
# steps:
# loop "y" outer [3] from "y"
#   stage []
#     v0: f32 = load b0[i0]
#     v1: f32 = load b2[i0]
#     v2: f32 = add v0, v1
#     v3: f32 = store b3[i0], v2
# loop "none" outer [3] from "none"
#   stage []
#     v0: f32 = const 0.0
#     v1: f32 = store b4[i0], v0
# plan bytes 0:
