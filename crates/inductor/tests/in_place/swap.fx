# Two buffers exchange their values: one of them has to wait in a temporary where no kernel does both.
fx 1.0

graph "swap" {
  %a: f32[256, 128] = buffer "a"
  %b: f32[256, 128] = buffer "b"

  return buffer "a" = %b
  return buffer "b" = %a
}

# expected:
# kir 1.12
# program "swap"
# buffer b0 "a" f32[256, 128]{128, 1}+0 input 0
# buffer b1 "b" f32[256, 128]{128, 1}+0 input 1
# buffer b2 "b_copy" f32[256, 128]{128, 1}+0 view b0
# buffer b3 "a_copy" f32[256, 128]{128, 1}+0 arena
# buffer b4 "b_new" f32[256, 128]{128, 1}+0 view b1
# input "a" b0 written
# input "b" b1 written
# init:
# steps:
# loop "a" outer [256, 128] from "a"
#   stage []
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = store b3[i0, i1], v0
# loop "b" outer [256, 128] from "b"
#   stage []
#     v0: f32 = load b1[i0, i1]
#     v1: f32 = store b2[i0, i1], v0
# loop "b_new_copy" outer [256, 128]
#   stage []
#     v0: f32 = load b3[i0, i1]
#     v1: f32 = store b4[i0, i1], v0
# plan bytes 131072:
#   b3 live 0..2 at 0
