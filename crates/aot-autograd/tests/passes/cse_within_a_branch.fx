# test pass cse
# A pass runs on the subgraphs too; what a branch computes twice is merged there.
fx 1.0

graph "g" {
  subgraph g0 "yes" {
    %a: f32[3] = input "a"

    %s: f32[3] = prims.sin(%a)
    %t: f32[3] = prims.sin(%a)
    %r: f32[3] = prims.mul(%s, %t)
    return %r
  }
  subgraph g1 "no" {
    %a: f32[3] = input "a"

    %r: f32[3] = prims.neg(%a)
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
#     %s: f32[3] = prims.sin(%a)
#     %r: f32[3] = prims.mul(%s, %s)
#     return %r
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
