# An integer of two symbols that nothing else tells.
fx 1.0

graph "g" {
  symbol s0 "a" 0..
  symbol s1 "b" 0..
  %x: f32[4] = input "x"
  %k: int(s0 + s1) = input "k"

  %full: f32[s0] = aten.full.default([s0], 1.0, f32, none, none, none)
  return %full
}

# expected:
# node `k` (placeholder): is `s0 + s1` by the program's symbols, and no input tells each of them: give the model one integer for each symbol
