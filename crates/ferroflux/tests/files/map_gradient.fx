# The joint graph of a map: gradients of what every entry reads are summed.
fx 1.0

graph "map" {
  symbol s0 "s" 1..=64 hint 5
  subgraph g0 "entry" {
    %x: f32[2] = input "x"
    %w: f32[2] = input "w"

    %y: f32[2] = prims.mul(%x, %w)
    %z: f32[2] = prims.sin(%y)
    return %z
  }
  subgraph g1 "entry" {
    %sum: f32[2] = input "sum_0"
    %x: f32[2] = input "x"
    %tangents_0: f32[2] = input "tangents_0"
    %w: f32[2] = input "w"

    %y: f32[2] = prims.mul(%x, %w)
    %z_grad: f32[2] = prims.cos(%y)
    %z_grad_1: f32[2] = prims.mul(%tangents_0, %z_grad)
    %y_grad: f32[2] = prims.mul(%z_grad_1, %w)
    %y_grad_1: f32[2] = prims.mul(%z_grad_1, %x)
    %total: f32[2] = prims.add(%sum, %y_grad_1)
    return %total
    return %y_grad
  }
  %xs: f32[s0, 2] = input "xs"
  %w: f32[2] = parameter "w"

  %ys: f32[s0, 2] = higher_order.map(&g0, [%xs], [%w])
  %sq: f32[s0, 2] = prims.mul(%ys, %xs)
  %loss: f32[] = prims.sum(%sq, [0, 1])
  %tangent: f32[] = prims.full([], 1.0, f32)
  %loss_grad: f32[1, 1] = prims.reshape(%tangent, [1, 1])
  %loss_grad_1: f32[s0, 2] = prims.expand(%loss_grad, [s0, 2])
  %sq_grad: f32[s0, 2] = prims.mul(%loss_grad_1, %xs)
  %sq_grad_1: f32[s0, 2] = prims.mul(%loss_grad_1, %ys)
  %ys_grad: f32[2] = prims.full([2], 0.0, f32)
  %ys_grad_1: f32[2], %ys_grad_2: f32[s0, 2] = higher_order.scan(&g1, [%ys_grad], [%xs, %sq_grad], [%w])
  %ys_grad_3: f32[s0, 2] = prims.add(%sq_grad_1, %ys_grad_2)
  return %loss
  return %ys_grad_3
  return %ys_grad_1
}
