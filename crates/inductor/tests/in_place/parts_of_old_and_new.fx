# A concatenation of products, of the old value of a buffer and of its new one: the products are stored in it, the others are
# copied, and the new value is in the buffer.
fx 1.0

graph "parts" {
  %state: f32[4, 8] = buffer "state"
  %x: f32[4, 8] = input "x"
  %w: f32[8, 8] = input "w"

  %p: f32[4, 8] = aten.mm.default(%x, %w)
  %q: f32[4, 8] = aten.mm.default(%p, %w)
  %r: f32[4, 8] = aten.mm.default(%q, %w)
  %sum: f32[4, 8] = aten.add.Tensor(%state, %r, 1)
  %new: f32[4, 8] = aten.tanh.default(%sum)
  %all: f32[4, 40] = aten.cat.default([%p, %q, %r, %state, %new], 1)
  %turned: f32[40, 4] = aten.permute.default(%all, [1, 0])
  %y: f32[4, 4] = aten.mm.default(%all, %turned)
  return buffer "state" = %new
  return %y
}

# expected:
