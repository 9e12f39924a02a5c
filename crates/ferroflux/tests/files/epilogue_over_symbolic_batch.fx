# The batch of a product is taken apart by a size that only the walk over the output names.
fx 1.0

graph "epilogue_over_symbolic_batch" {
  symbol s0 "s" 1..=64 hint 4
  %x: f32[16, s0, 2, 2] = input "x"

  %matmul: f32[16, s0, 2, 2] = prims.matmul(%x, %x)
  %transpose: f32[16, s0, 2, 2]{1, 64, 16, 32} = prims.permute(%matmul, [0, 1, 3, 2])
  return %transpose
}
