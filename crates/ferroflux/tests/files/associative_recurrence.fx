# h[i] = a[i] h[i - 1] + x[i], as a scan of pairs.
fx 1.0

graph "associative_recurrence" {
  symbol s0 "s" 1..=64 hint 6
  subgraph g0 "combine" {
    %a: f32[3] = input "a"
    %x: f32[3] = input "x"
    %b: f32[3] = input "b"
    %y: f32[3] = input "y"

    %c: f32[3] = prims.mul(%a, %b)
    %m: f32[3] = prims.mul(%x, %b)
    %z: f32[3] = prims.add(%m, %y)
    return %c
    return %z
  }
  %a: f32[s0, 3] = input "a"
  %x: f32[s0, 3] = input "x"

  %c: f32[s0, 3], %z: f32[s0, 3] = higher_order.associative_scan(&g0, [%a, %x], [])
  return %c
  return %z
}
