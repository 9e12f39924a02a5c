# A size that each branch finds out for itself, and one that the caller reads behind it.
fx 1.0

graph "item_in_a_branch" {
  symbol s0 "s" 8..=64 hint 9
  symbol s1 "u0" 0..=8 unbacked
  symbol s2 "u1" 0..=8 unbacked
  subgraph g0 "then" {
    %x: f32[s0] = input "x"
    %n: i64[] = input "n_lt5"

    %u: int(s1) = prims.item(%n)
    %y: f32[s1] = prims.slice(%x, 0, 0, s1, 1)
    return %y
  }
  subgraph g1 "else" {
    %x: f32[s0] = input "x"
    %n: i64[] = input "n_lt5"

    %y: f32[3] = prims.slice(%x, 0, 2, 3, 1)
    return %y
  }
  %x: f32[s0] = input "x"
  %n: i64[] = input "n_lt5"
  %p: bool[] = input "p"

  %y: f32[s2] = higher_order.cond(%p, &g0, &g1, [%x, %n])
  %z: f32[s2] = prims.mul(%y, 2.0)
  %s: f32[] = prims.sum(%z, [0])
  return %y
  return %z
  return %s
}
