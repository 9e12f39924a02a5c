# test decompose
# Control flow stays a call; its branches are decomposed.
fx 1.0

graph "g" {
  subgraph g0 "yes" {
    %a: f32[3] = input "a"

    %r: f32[3] = aten.silu.default(%a)
    return %r
  }
  subgraph g1 "no" {
    %a: f32[3] = input "a"

    %r: f32[3] = aten.neg.default(%a)
    return %r
  }
  %p: bool[] = input "p"
  %x: f32[3] = input "x"

  %y: f32[3] = higher_order.cond(%p, &g0, &g1, [%x])
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   subgraph g0 "yes" {
#     %a: f32[3] = input "a"
#
#     %r: f32[3] = prims.neg(%a)
#     %r_1: f32[3] = prims.exp(%r)
#     %r_2: f32[3] = prims.add(%r_1, 1.0)
#     %r_3: f32[3] = prims.div(%a, %r_2)
#     return %r_3
#   }
#   subgraph g1 "no" {
#     %a: f32[3] = input "a"
#
#     %r: f32[3] = prims.neg(%a)
#     return %r
#   }
#   %p: bool[] = input "p"
#   %x: f32[3] = input "x"
#
#   %y: f32[3] = higher_order.cond(%p, &g0, &g1, [%x])
#   return %y
# }
