# test fuse
# Real and imaginary parts are read where they lie beside each other, and written so: nothing is copied.
fx 1.0

graph "g" {
  %x: f32[3, 8, 2] = input "x"

  %a: f32[3, 8, 1] = prims.slice(%x, 2, 0, 1, 1)
  %re: f32[3, 8] = prims.reshape(%a, [3, 8])
  %b: f32[3, 8, 1] = prims.slice(%x, 2, 1, 1, 1)
  %im: f32[3, 8] = prims.reshape(%b, [3, 8])
  %p: f32[3, 8], %q: f32[3, 8] = prims.dft(%re, %im, 0, false, true, 1.0)
  %c: f32[3, 8], %d: f32[3, 8] = prims.dft(%p, %q, 1, false, true, 1.0)
  %e: f32[3, 8, 1] = prims.reshape(%c, [3, 8, 1])
  %f: f32[3, 8, 1] = prims.reshape(%d, [3, 8, 1])
  %y: f32[3, 8, 2] = prims.cat([%e, %f], 2)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[3, 8, 2]{16, 2, 1}+0 input 0
# buffer b1 "y" f32[3, 8, 2]{16, 2, 1}+0 output
# buffer b2 "p" f32[3, 8]{8, 1}+0 arena
# buffer b3 "q" f32[3, 8]{8, 1}+0 arena
# buffer b4 "c" f32[3, 8]{16, 2}+0 view b1
# buffer b5 "d" f32[3, 8]{16, 2}+1 view b1
# input "x" b0
# output "y" b1[3, 8, 2]{16, 2, 1}+0
# init:
# steps:
# extern "p" fourier dim 0 forward scale 1.0 from "p"
#   in b0[3, 8]{16, 2}+0
#   in b0[3, 8]{16, 2}+1
#   out b2[3, 8]{8, 1}+0
#   out b3[3, 8]{8, 1}+0
# extern "c" fourier dim 1 forward scale 1.0 from "c"
#   in b2[3, 8]{8, 1}+0
#   in b3[3, 8]{8, 1}+0
#   out b4[3, 8]{16, 2}+0
#   out b5[3, 8]{16, 2}+1
# plan bytes 256:
#   b2 live 0..1 at 0
#   b3 live 0..1 at 128
