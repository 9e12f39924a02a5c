# test fuse
# A row of zeros behind a value: its exponentials are computed where the padded value is stored. Where three of four elements
# are padding they are stored first.
fx 1.0

graph "g" {
  %x: f32[63, 32] = input "x"
  %s: f32[63, 8] = input "s"
  %w: f32[32, 16] = input "w"

  %e: f32[63, 32] = prims.exp(%x)
  %p: f32[64, 32] = prims.pad(%e, [0, 0], [1, 0], [0, 0], 0.0)
  %y: f32[64, 16] = prims.matmul(%p, %w)
  %f: f32[63, 8] = prims.exp(%s)
  %q: f32[63, 32] = prims.pad(%f, [0, 0], [0, 24], [0, 0], 0.0)
  %z: f32[63, 16] = prims.matmul(%q, %w)
  return %y
  return %z
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[63, 32]{32, 1}+0 input 0
# buffer b1 "s" f32[63, 8]{8, 1}+0 input 1
# buffer b2 "w" f32[32, 16]{16, 1}+0 input 2
# buffer b3 "p" f32[64, 32]{32, 1}+0 arena
# buffer b4 "y" f32[64, 16]{16, 1}+0 output
# buffer b5 "f" f32[63, 8]{8, 1}+0 arena
# buffer b6 "q" f32[63, 32]{32, 1}+0 arena
# buffer b7 "z" f32[63, 16]{16, 1}+0 output
# input "x" b0
# input "s" b1
# input "w" b2
# output "y" b4[64, 16]{16, 1}+0
# output "z" b7[63, 16]{16, 1}+0
# init:
# steps:
# together "fused_e_p_and_1_more"
# do:
# loop "fused_e_p" outer [64, 32] from "e", "p"
#   stage []
#     v0: i64 = index i0
#     v1: i64 = const 63
#     v2: bool = lt v0, v1
#     v3: f32 = load b0[i0, i1] if v2
#     v4: f32 = exp v3
#     v5: f32 = const 0.0
#     v6: f32 = select v2, v4, v5
#     v7: f32 = store b3[i0, i1], v6
# loop "f" outer [63, 8] from "f"
#   stage []
#     v0: f32 = load b1[i0, i1]
#     v1: f32 = exp v0
#     v2: f32 = store b5[i0, i1], v1
# end
# matmul "y" acc f32 from "y"
#   a b3[64, 32]{32, 1}+0
#   b b2[32, 16]{16, 1}+0
#   epilogue [64, 16]
#     v0: f32 = template
#     v1: f32 = store b4[i0, i1], v0
# loop "q" outer [63, 32] from "q"
#   stage []
#     v0: i64 = index i1
#     v1: i64 = const 8
#     v2: bool = lt v0, v1
#     v3: f32 = load b5[i0, i1] if v2
#     v4: f32 = store b6[i0, i1], v3
# matmul "z" acc f32 from "z"
#   a b6[63, 32]{32, 1}+0
#   b b2[32, 16]{16, 1}+0
#   epilogue [63, 16]
#     v0: f32 = template
#     v1: f32 = store b7[i0, i1], v0
# plan bytes 10240:
#   b3 live 0..1 at 0
#   b5 live 0..2 at 8192
#   b6 live 2..3 at 0
