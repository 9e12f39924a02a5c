# Branches read views of what the program computes, constants and each other's operands; results have several strides.
fx 1.0

graph "cond_nested" {
  symbol s0 "s" 1..=64 hint 4
  subgraph g0 "outer_then" {
    subgraph g0 "inner_then" {
      %a: f32[3, s0]{1, 3} = input "a"

      %b: f32[3, s0] = prims.exp(%a)
      return %a
      return %b
    }
    subgraph g1 "inner_else" {
      %a: f32[3, s0]{1, 3} = input "a"

      %b: f32[3, s0] = prims.neg(%a)
      return %b
      return %a
    }
    %a: f32[3, s0]{1, 3} = input "a"
    %w: f32[3, 3] = input "w"
    %q: bool[] = input "q"

    %m: f32[3, s0] = prims.matmul(%w, %a)
    %x: f32[3, s0], %y: f32[3, s0] = higher_order.cond(%q, &g0, &g1, [%m])
    %z: f32[3, s0] = prims.add(%x, %y)
    return %z
    return %x
  }
  subgraph g1 "outer_else" {
    %a: f32[3, s0]{1, 3} = input "a"
    %w: f32[3, 3] = input "w"
    %q: bool[] = input "q"

    return %a
    return %a
  }
  %x: f32[s0, 3] = input "x"
  %p: bool[] = input "p"
  %q: bool[] = input "q"
  %w: f32[3, 3] = parameter "w"

  %y: f32[s0, 3] = prims.sin(%x)
  %t: f32[3, s0]{1, 3} = prims.permute(%y, [1, 0])
  %c: f32[3, s0]{1, 3}, %d: f32[3, s0] = higher_order.cond(%p, &g0, &g1, [%t, %w, %q])
  %e: f32[3, s0] = prims.add(%c, %t)
  return %c
  return %d
  return %e
}
