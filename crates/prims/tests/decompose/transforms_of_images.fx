# test decompose
#
# A prim for each dimension, the last of which scales; the halves of real lines alone.
fx 1.0

graph "g" {
  %x: f32[2, 12, 16] = input "x"

  %y: c64[2, 12, 9] = aten.fft_rfft2.default(%x, none, [-2, -1], "ortho")
  %z: f32[2, 12, 16] = aten.fft_irfft2.default(%y, none, [-2, -1], none)
  return %y
  return %z
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 12, 16] = input "x"
#
#   %y: f32[2, 12, 9], %y_1: f32[2, 12, 9] = prims.dft(%x, none, 2, true, true, 1.0)
#   %y_2: f32[2, 12, 9], %y_3: f32[2, 12, 9] = prims.dft(%y, %y_1, 1, false, true, 0.07216878364870323)
#   %y_4: c64[2, 12, 9] = prims.complex(%y_2, %y_3)
#   %z: f32[2, 12, 9], %z_1: f32[2, 12, 9] = prims.dft(%y_2, %y_3, 1, false, false, 1.0)
#   %z_2: f32[2, 12, 16] = prims.dft_real(%z, %z_1, 2, 16, false, 0.005208333333333333)
#   return %y_4
#   return %z_2
# }
