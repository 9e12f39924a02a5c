# The joint graph of a recurrent layer over a symbolic length: what each turn was given is kept, and gone back over.
fx 1.0

graph "scan" {
  symbol s0 "s" 1..=64 hint 5
  subgraph g0 "turn" {
    %h: f32[2] = input "h"
    %n: i64[] = input "n_lt5"
    %x: f32[2] = input "x"
    %w: f32[2, 2] = input "w"

    %wh: f32[2, 1] = prims.reshape(%h, [2, 1])
    %wh_1: f32[2, 1] = prims.matmul(%w, %wh)
    %wh_2: f32[2] = prims.reshape(%wh_1, [2])
    %s: f32[2] = prims.add(%wh_2, %x)
    %t: f32[2] = prims.tanh(%s)
    %u: f32[] = prims.convert(%n, f32)
    %u_1: f32[2] = prims.expand(%u, [2])
    %u_2: f32[2] = prims.mul(%t, %u_1)
    %m: i64[] = prims.add(%n, 1)
    %z: f32[2] = prims.exp(%x)
    return %t
    return %m
    return %u_2
    return %z
  }
  subgraph g1 "turn" {
    %tangents_0: f32[2] = input "tangents_0"
    %sum: f32[2, 2] = input "sum_0"
    %h: f32[2] = input "h"
    %n: i64[] = input "n_lt5"
    %x: f32[2] = input "x"
    %tangents_1: f32[2] = input "tangents_1"
    %w: f32[2, 2] = input "w"

    %wh: f32[2, 1] = prims.reshape(%h, [2, 1])
    %wh_1: f32[2, 1] = prims.matmul(%w, %wh)
    %wh_2: f32[2] = prims.reshape(%wh_1, [2])
    %s: f32[2] = prims.add(%wh_2, %x)
    %t: f32[2] = prims.tanh(%s)
    %u: f32[] = prims.convert(%n, f32)
    %u_1: f32[2] = prims.expand(%u, [2])
    %u_grad: f32[2] = prims.mul(%tangents_1, %u_1)
    %u_grad_1: f32[2] = prims.add(%tangents_0, %u_grad)
    %t_grad: f32[2] = prims.mul(%t, %t)
    %t_grad_1: f32[2] = prims.sub(1.0, %t_grad)
    %t_grad_2: f32[2] = prims.mul(%u_grad_1, %t_grad_1)
    %wh_grad: f32[2, 1] = prims.reshape(%t_grad_2, [2, 1])
    %wh_grad_1: f32[2, 2] = prims.permute(%w, [1, 0])
    %wh_grad_2: f32[1, 2] = prims.permute(%wh, [1, 0])
    %wh_grad_3: f32[2, 2] = prims.matmul(%wh_grad, %wh_grad_2)
    %wh_grad_4: f32[2, 1] = prims.matmul(%wh_grad_1, %wh_grad)
    %wh_grad_5: f32[2] = prims.reshape(%wh_grad_4, [2])
    %total: f32[2, 2] = prims.add(%sum, %wh_grad_3)
    return %wh_grad_5
    return %total
    return %t_grad_2
  }
  subgraph g2 "turn" {
    %h: f32[2] = input "h"
    %n: i64[] = input "n_lt5"
    %x: f32[2] = input "x"
    %w: f32[2, 2] = input "w"

    %wh: f32[2, 1] = prims.reshape(%h, [2, 1])
    %wh_1: f32[2, 1] = prims.matmul(%w, %wh)
    %wh_2: f32[2] = prims.reshape(%wh_1, [2])
    %s: f32[2] = prims.add(%wh_2, %x)
    %t: f32[2] = prims.tanh(%s)
    %u: f32[] = prims.convert(%n, f32)
    %u_1: f32[2] = prims.expand(%u, [2])
    %u_2: f32[2] = prims.mul(%t, %u_1)
    %m: i64[] = prims.add(%n, 1)
    %z: f32[2] = prims.exp(%x)
    return %t
    return %m
    return %u_2
    return %z
    return %h
    return %n
  }
  %xs: f32[s0, 2] = input "xs"
  %h: f32[2] = parameter "h"
  %w: f32[2, 2] = parameter "w"
  %n: i64[] = input "n_lt5"

  %last: f32[2], %count: i64[], %ys: f32[s0, 2], %zs: f32[s0, 2], %last_grad_kept: f32[s0, 2], %last_grad_kept_1: i64[s0] = higher_order.scan(&g2, [%h, %n], [%xs], [%w])
  %a: f32[] = prims.sum(%ys, [0, 1])
  %b: f32[2] = prims.mul(%last, %h)
  %c: f32[] = prims.sum(%b, [0])
  %loss: f32[] = prims.add(%a, %c)
  %tangent: f32[] = prims.full([], 1.0, f32)
  %c_grad: f32[1] = prims.reshape(%tangent, [1])
  %c_grad_1: f32[2] = prims.expand(%c_grad, [2])
  %b_grad: f32[2] = prims.mul(%c_grad_1, %h)
  %b_grad_1: f32[2] = prims.mul(%c_grad_1, %last)
  %a_grad: f32[1, 1] = prims.reshape(%tangent, [1, 1])
  %a_grad_1: f32[s0, 2] = prims.expand(%a_grad, [s0, 2])
  %last_grad: f32[2, 2] = prims.full([2, 2], 0.0, f32)
  %last_grad_1: f32[s0, 2] = prims.slice(%last_grad_kept, 0, s0 - 1, s0, -1)
  %last_grad_2: i64[s0] = prims.slice(%last_grad_kept_1, 0, s0 - 1, s0, -1)
  %last_grad_3: f32[s0, 2] = prims.slice(%xs, 0, s0 - 1, s0, -1)
  %last_grad_4: f32[s0, 2] = prims.slice(%a_grad_1, 0, s0 - 1, s0, -1)
  %last_grad_5: f32[2], %last_grad_6: f32[2, 2], %last_grad_7: f32[s0, 2] = higher_order.scan(&g1, [%b_grad, %last_grad], [%last_grad_1, %last_grad_2, %last_grad_3, %last_grad_4], [%w])
  %last_grad_8: f32[s0, 2] = prims.slice(%last_grad_7, 0, s0 - 1, s0, -1)
  %last_grad_9: f32[2] = prims.add(%b_grad_1, %last_grad_5)
  return %loss
  return %last_grad_8
  return %last_grad_9
  return %last_grad_6
}
