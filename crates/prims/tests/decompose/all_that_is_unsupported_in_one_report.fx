# test decompose
# Every call that cannot be decomposed is told, not the first alone; what reads one is not told again.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"

  %a: f32[3] = aten.no_such_operator.default(%x)
  %b: f32[3] = aten.relu.default(%a)
  %c: f32[3] = aten.no_other.default(%x) from net:forward:"net.py:9"
  return %b
  return %c
}

# expected:
# node `a` (aten.no_such_operator.default): unknown operator `aten.no_such_operator.default`
# node `c` (aten.no_other.default, from net: forward at net.py:9): unknown operator `aten.no_other.default`; the nearest supported forms are `aten.gather.default`, `aten.outer.default`
