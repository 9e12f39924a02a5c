# One branch writes its operand: both return its last value, and the call gives it as a further result.
fx 1.0

graph "cond" {
  subgraph g0 "true_graph" {
    %a: f32[4] = input "a"
    %b: f32[4] = input "b"

    %add_: f32[4] = aten.add_.Tensor(%a, %b, 1)
    %sin: f32[4] = aten.sin.default(%a)
    return %sin
  }
  subgraph g1 "false_graph" {
    %a: f32[4] = input "a"
    %b: f32[4] = input "b"

    %cos: f32[4] = aten.cos.default(%b)
    return %cos
  }
  %p: bool[] = input "p"
  %state: f32[4] = buffer "state"
  %x: f32[4] = input "x"

  %cond: f32[4] = higher_order.cond(%p, &g0, &g1, [%state, %x])
  %mul: f32[4] = aten.mul.Tensor(%cond, %state)
  return %mul
}

# expected:
# fx 1.0
#
# graph "cond" {
#   subgraph g0 "true_graph" {
#     %a: f32[4] = input "a"
#     %b: f32[4] = input "b"
#
#     %add: f32[4] = aten.add.Tensor(%a, %b, 1)
#     %sin: f32[4] = aten.sin.default(%add)
#     return %sin
#     return %add
#   }
#   subgraph g1 "false_graph" {
#     %a: f32[4] = input "a"
#     %b: f32[4] = input "b"
#
#     %cos: f32[4] = aten.cos.default(%b)
#     return %cos
#     return %a
#   }
#   %p: bool[] = input "p"
#   %state: f32[4] = buffer "state"
#   %x: f32[4] = input "x"
#
#   %cond: f32[4], %written: f32[4] = higher_order.cond(%p, &g0, &g1, [%state, %x])
#   %mul: f32[4] = aten.mul.Tensor(%cond, %written)
#   return %mul
#   return buffer "state" = %written
# }
