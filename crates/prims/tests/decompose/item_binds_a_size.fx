# test decompose
# A number out of a tensor binds a symbol where a size depends on it.
fx 1.0

graph "g" {
  symbol s0 "k" 0..=8 unbacked
  %n: i64[] = input "n"
  %x: f32[8] = input "x"

  %k: int(s0) = aten.item.default(%n)
  %y: f32[s0] = aten.slice.Tensor(%x, 0, 0, s0, 1)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   symbol s0 "k" 0..=8 unbacked
#   %n: i64[] = input "n"
#   %x: f32[8] = input "x"
#
#   %k: int(s0) = prims.item(%n)
#   %y: f32[s0] = prims.slice(%x, 0, 0, s0, 1)
#   return %y
# }
