# test roundtrip
fx 1.0

graph "every construct" {
  symbol s0 "batch" 2..=64 hint 8
  symbol s1 "u0" 0.. unbacked
  subgraph g0 "true_graph" {
    %a: f32[s0, 3] = input "a"

    %sin: f32[s0, 3] = aten.sin.default(%a)
    return %sin
  }
  subgraph g1 "false_graph" {
    %a: f32[s0, 3] = input "a"
    return %a
  }
  %x: f32[s0, 3] = input "x"
  %p: bool[] = input "p"
  %w: bf16[3, 4]{1, 3}+12@cuda:0 = parameter "fc.weight"
  %mean: f32[4] = buffer "bn.running_mean"
  %ids: i64[1, 512] = buffer transient "position_ids"
  %"odd name": c64[] = constant "lifted \"0\""

  %mm: f32[s0, 4] = aten.mm.default(%x, %w) from fc:linear:"net.py:12 in forward"
  %max: f32[s0], %argmax: i64[s0] = aten.max.dim(%mm, -1, false) from :max
  %nonzero: i64[s1, 2] = aten.nonzero.default(%max)
  %n: int(s1) = aten.sym_size.int(%nonzero, 0)
  %f: float = aten.item.default(%argmax)
  %b: bool = operator.ge(%n, 2*s0 + s1 // 2 - 1)
  aten._assert_scalar.default(%b, "too few\nrows")
  %full: f64[3] = aten.full.default([3], complex(0.5, -inf), f64, strided, @cpu, false, none)
  %cond: f32[s0, 3] = higher_order.cond(%p, &g0, &g1, [%x])
  %to: f32[s0, 3] = aten.to.dtype(%cond, f32, false, false, channels_last)
  %index: f32[2, 3] = aten.index.Tensor(%x, [%ids, none]) from layer1.0
  return %to
  return loss %f
  return 1e-5
  return buffer "bn.running_mean" = %mean
  return input "x" = %mm
  return parameter_gradient "fc.weight" = %w
  return input_gradient "x" = %to
  return saved %max
}
