# All refusals in one report.
fx 1.0

graph "g" {
  %w: f32[3] = parameter "fc.weight"
  %x: f32[3] = input "x"

  %add_: f32[3] = aten.add_.Tensor(%w, %x, 1) from fc:add_
  %expand: f32[2, 3]{0, 1} = aten.expand.default(%x, [2, 3], false)
  %relu_: f32[2, 3]{0, 1} = aten.relu_.default(%expand) from act
  %out: f32[3] = aten.add.out(%x, %x, 1, %x)
  %neg: f32[3] = aten.neg.default(%out)
  return %neg
}

# expected:
# node `add_` (aten.add_.Tensor, from fc: add_): writes parameter `fc.weight`: only buffers and inputs may change; register it as a buffer, or clone it first
# node `relu_` (aten.relu_.default, from act): writes through a view that repeats elements (`expand`), so that one element would get several values; clone the tensor before writing to it
# node `out` (aten.add.out): `out=` variants are not supported: call the operator without `out` and copy its result
