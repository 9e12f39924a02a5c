# The joint graph of a cond: the backward of each branch, one of which holds a cond itself.
fx 1.0

graph "cond" {
  subgraph g0 "then" {
    subgraph g0 "inner_then" {
      %a: f32[3] = input "a"

      %b: f32[3] = prims.exp(%a)
      return %b
    }
    subgraph g1 "inner_else" {
      %a: f32[3] = input "a"

      %b: f32[3] = prims.mul(%a, %a)
      return %b
    }
    %a: f32[3] = input "a"
    %w: f32[3] = input "w"
    %q: bool[] = input "q"

    %m: f32[3] = prims.mul(%a, %w)
    %x: f32[3] = higher_order.cond(%q, &g0, &g1, [%m])
    return %x
    return %m
  }
  subgraph g1 "else" {
    %a: f32[3] = input "a"
    %w: f32[3] = input "w"
    %q: bool[] = input "q"

    %s: f32[3] = prims.sin(%a)
    return %s
    return %a
  }
  subgraph g2 "then" {
    subgraph g0 "inner_then" {
      %a: f32[3] = input "a"

      %b: f32[3] = prims.exp(%a)
      return %b
    }
    subgraph g1 "inner_else" {
      %a: f32[3] = input "a"

      %b: f32[3] = prims.mul(%a, %a)
      return %b
    }
    subgraph g2 "inner_then" {
      %a: f32[3] = input "a"
      %tangents_0: f32[3] = input "tangents_0"

      %b: f32[3] = prims.exp(%a)
      %b_grad: f32[3] = prims.mul(%tangents_0, %b)
      return %b_grad
    }
    subgraph g3 "inner_else" {
      %a: f32[3] = input "a"
      %tangents_0: f32[3] = input "tangents_0"

      %b_grad: f32[3] = prims.mul(%tangents_0, %a)
      %b_grad_1: f32[3] = prims.mul(%tangents_0, %a)
      %b_grad_2: f32[3] = prims.add(%b_grad, %b_grad_1)
      return %b_grad_2
    }
    %a: f32[3] = input "a"
    %w: f32[3] = input "w"
    %q: bool[] = input "q"
    %tangents_0: f32[3] = input "tangents_0"
    %tangents_1: f32[3] = input "tangents_1"

    %m: f32[3] = prims.mul(%a, %w)
    %x_grad: f32[3] = higher_order.cond(%q, &g2, &g3, [%m, %tangents_0])
    %x_grad_1: f32[3] = prims.add(%tangents_1, %x_grad)
    %m_grad: f32[3] = prims.mul(%x_grad_1, %w)
    %m_grad_1: f32[3] = prims.mul(%x_grad_1, %a)
    return %m_grad
    return %m_grad_1
  }
  subgraph g3 "else" {
    %a: f32[3] = input "a"
    %w: f32[3] = input "w"
    %q: bool[] = input "q"
    %tangents_0: f32[3] = input "tangents_0"
    %tangents_1: f32[3] = input "tangents_1"

    %s_grad: f32[3] = prims.cos(%a)
    %s_grad_1: f32[3] = prims.mul(%tangents_0, %s_grad)
    %s_grad_2: f32[3] = prims.add(%tangents_1, %s_grad_1)
    %none: f32[3] = prims.full([3], 0.0, f32)
    return %s_grad_2
    return %none
  }
  %x: f32[3] = input "x"
  %w: f32[3] = parameter "w"
  %p: bool[] = input "p"
  %q: bool[] = input "q"

  %y: f32[3] = prims.tanh(%x)
  %c: f32[3], %d: f32[3] = higher_order.cond(%p, &g0, &g1, [%y, %w, %q])
  %e: f32[3] = prims.mul(%c, %y)
  %f: f32[3] = prims.add(%e, %d)
  %loss: f32[] = prims.sum(%f, [0])
  %tangent: f32[] = prims.full([], 1.0, f32)
  %loss_grad: f32[1] = prims.reshape(%tangent, [1])
  %loss_grad_1: f32[3] = prims.expand(%loss_grad, [3])
  %e_grad: f32[3] = prims.mul(%loss_grad_1, %y)
  %e_grad_1: f32[3] = prims.mul(%loss_grad_1, %c)
  %c_grad: f32[3], %c_grad_1: f32[3] = higher_order.cond(%p, &g2, &g3, [%y, %w, %q, %e_grad, %loss_grad_1])
  %c_grad_2: f32[3] = prims.add(%e_grad_1, %c_grad)
  %y_grad: f32[3] = prims.mul(%y, %y)
  %y_grad_1: f32[3] = prims.sub(1.0, %y_grad)
  %y_grad_2: f32[3] = prims.mul(%c_grad_2, %y_grad_1)
  return %loss
  return %y_grad_2
  return %c_grad_1
}
