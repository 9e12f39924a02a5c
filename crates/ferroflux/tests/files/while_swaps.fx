# Two values change places: the new ones are complete before the first old one goes.
fx 1.0

graph "while_swaps" {
  symbol s0 "s" 1..=64 hint 4
  subgraph g0 "test" {
    %i: i64[] = input "i"
    %a: f32[s0] = input "a"
    %b: f32[s0] = input "b"
    %n: i64[] = input "n"

    %go: bool[] = prims.lt(%i, %n)
    return %go
  }
  subgraph g1 "body" {
    %i: i64[] = input "i"
    %a: f32[s0] = input "a"
    %b: f32[s0] = input "b"
    %n: i64[] = input "n"

    %j: i64[] = prims.add(%i, 1)
    %c: f32[s0] = prims.mul(%a, 0.5)
    return %j
    return %b
    return %c
  }
  %x: f32[s0] = input "x"
  %y: f32[s0] = input "y"

  %zero: i64[] = prims.full([], 0, i64)
  %n: i64[] = prims.full([], 5, i64)
  %i: i64[], %a: f32[s0], %b: f32[s0] = higher_order.while_loop(&g0, &g1, [%zero, %x, %y], [%n])
  return %i
  return %a
  return %b
}
