# Slices are views at the counter; the carry and the stacks are written turn by turn, with a product in the body.
fx 1.0

graph "scan_of_slices" {
  symbol s0 "s" 1..=64 hint 5
  subgraph g0 "step" {
    %h: f32[2, 3] = input "h"
    %x: f32[2, 3] = input "x"
    %w: f32[3, 3] = input "w"

    %m: f32[2, 3] = prims.matmul(%h, %w)
    %a: f32[2, 3] = prims.add(%m, %x)
    %t: f32[2, 3] = prims.tanh(%a)
    %s: f32[2] = prims.sum(%t, [1])
    return %t
    return %t
    return %s
  }
  %x: f32[s0, 2, 3] = input "x"
  %h: f32[2, 3] = input "h"
  %w: f32[3, 3] = parameter "w"

  %last: f32[2, 3], %all: f32[s0, 2, 3], %sums: f32[s0, 2] = higher_order.scan(&g0, [%h], [%x], [%w])
  %e: f32[s0, 2, 3] = prims.exp(%all)
  return %last
  return %all
  return %sums
  return %e
}
