"""The rules for the attention operators of CUDA devices, computed on the CPU against attention in float64, and as AOTAutograd traces them."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ferroflux import attention, operators

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "shared heads": {"heads": 2},
    "other length": {"keys": 9},
    "several words": {"keys": 70},
    "bias": {"bias": (1, 1, 6, 6)},
    "bias of every head": {"bias": (2, 4, 6, 6)},
    "bias of keys": {"bias": (2, 1, 1, 37), "keys": 37, "heads": 2},
    "bias and causal": {"bias": (1, 4, 6, 6), "is_causal": True},
    "short values": {"values": 5},
    "long values": {"values": 12, "is_causal": True},
}


def given(heads=4, keys=6, values=8, bias=None, is_causal=False, scale=None):
    double = {"dtype": torch.float64, "requires_grad": True}
    q, k, v = (torch.randn(2, *rest, **double) for rest in ((4, 6, 8), (heads, keys, 8), (heads, keys, values)))
    if bias is not None:
        bias = torch.randn(bias, **double)
    return (q, k, v, bias), is_causal, scale


def reference(q, k, v, bias, is_causal, scale, kept=None, p=0.0):
    k, v = (t.repeat_interleave(4 // t.size(1), 1) for t in (k, v))
    scores = q @ k.mT * (scale or 1 / math.sqrt(8))
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -math.inf)
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(-1)
    return (weights if kept is None else weights * kept * operators.factor(p)) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("wants_bias", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("name", CASES)
def test_both_directions(name, p, wants_bias):
    (q, k, v, bias), is_causal, scale = given(**CASES[name])
    with torch.no_grad():
        mask = None if bias is None else bias.detach()
        out, sums, seed, _ = attention.efficient(q, k, v, mask, True, p, is_causal, scale=scale)
    kept = operators.kept(seed, k.size(2)) if p else None
    if p:
        assert seed.dtype == torch.int32 and seed.shape == (2, 4, 6, -(-k.size(2) // 32))
        assert 0.5 < float(kept.double().mean()) < 0.9
    true, true_sums = reference(q, k, v, bias, is_causal, scale, kept, p)
    torch.testing.assert_close(out, true)
    torch.testing.assert_close(sums.double(), true_sums)
    grad = torch.randn_like(true)
    wanted = torch.autograd.grad(true, [t for t in (q, k, v, bias) if t is not None], grad)
    ask = [True, True, True, wants_bias]
    with torch.no_grad():
        found = attention.efficient_backward(grad, q, k, v, mask, out, sums, seed, seed, p, ask, is_causal, scale=scale)
    assert (found[3] is None) == (bias is None or not wants_bias)
    for a, b in zip([t for t in found if t is not None], wanted):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_other_operators(p):
    (q, k, v, _), _, _ = given()
    grad = torch.randn_like(q)
    with torch.no_grad():
        out, sums, *_, seed, _, _ = attention.flash(q, k, v, p, True)
        of_flash = attention.flash_backward(grad, q, k, v, out, sums, None, None, 6, 6, p, True, seed, seed)
    true, _ = reference(q, k, v, None, True, None, operators.kept(seed, 6) if p else None, p)
    wanted = torch.autograd.grad(true, (q, k, v), grad)
    with torch.no_grad():
        sums = sums.unsqueeze(-1)
        of_cudnn = attention.cudnn_backward(grad, q, k, v, out, sums, seed, seed, None, None, None, 6, 6, p, True)
        if not p:
            torch.testing.assert_close(attention.cudnn(q, k, v, None, True, p, True)[0], true)
    for a, b, c in zip(of_flash, of_cudnn, wanted):
        torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(b, c, rtol=1e-6, atol=1e-6)


def test_the_rules_take_the_arguments_of_their_operators():
    import inspect

    for operator, rule in attention.rules().items():
        names = [a.name for a in operator._schema.arguments]
        assert list(inspect.signature(rule).parameters) == names


def test_where_all_weights_are_dropped_everything_is_zero():
    (q, k, v, bias), _, _ = given(bias=(1, 1, 6, 6), heads=2)
    bias = bias.detach()
    with torch.no_grad():
        out, sums, seed, offset = attention.efficient(q, k, v, bias, True, 1.0)
        ask = [True] * 4
        found = attention.efficient_backward(torch.ones_like(out), q, k, v, bias, out, sums, seed, offset, 1.0, ask)
    for zero, like in zip((out, *found), (q, q, k, v, bias)):
        assert torch.equal(zero, torch.zeros_like(like))


def traced(function, *operands):
    """The names of the operators of a function's graph by the rules."""
    table = attention.rules()
    with torch.no_grad():
        graph = make_fx(function, decomposition_table=table, tracing_mode="fake")(*operands).graph
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


OWN = ["ferroflux.kept_weights.default", "ferroflux.attention.default", "ferroflux.attention_backward.default"]
SDPA = torch.ops.aten


@pytest.mark.parametrize("wants_bias", [False, True])
def test_efficient_attention_with_dropout_is_traced_as_the_own_operators(wants_bias):
    def step(q, k, v, bias, grad):
        out, sums, seed, offset = SDPA._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.2)
        given = (grad, q, k, v, bias, out, sums, seed, offset, 0.2, [True, True, True, wants_bias])
        return SDPA._scaled_dot_product_efficient_attention_backward(*given)[:3]

    (q, k, v, bias), _, _ = given(bias=(1, 4, 6, 6))
    names = traced(step, *(t.detach() for t in (q, k, v, bias, q)))
    assert [name for name in names if name.startswith("ferroflux")] == OWN[: 2 if wants_bias else 3]
    assert any("softmax" in name or "exp" in name for name in names) == wants_bias
    assert not any("rand" in name for name in names)


def test_the_other_operators_with_dropout_are_traced_as_the_own_operators():
    def flash(q, k, v, grad):
        out, sums, _, _, lq, lk, seed, offset, _ = SDPA._scaled_dot_product_flash_attention(q, k, v, 0.2, True)
        given = (grad, q, k, v, out, sums, None, None, lq, lk, 0.2, True, seed, offset)
        return SDPA._scaled_dot_product_flash_attention_backward(*given)

    def cudnn(q, k, v, grad):
        out, sums, _, _, lq, lk, seed, offset, _ = SDPA._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.2, True)
        given = (grad, q, k, v, out, sums, seed, offset, None, None, None, lq, lk, 0.2, True)
        return SDPA._scaled_dot_product_cudnn_attention_backward(*given)

    (q, k, v, _), _, _ = given()
    for function in (flash, cudnn):
        names = traced(function, *(t.detach() for t in (q, k, v, q)))
        assert [name for name in names if name.startswith("ferroflux")] == OWN
        assert not any(part in name for name in names for part in ("rand", "exp", "softmax"))


def test_without_dropout_no_words_are_drawn():
    (q, k, v, _), _, _ = given()
    step = lambda q, k, v: SDPA._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0)[:2]
    assert not any(name.startswith("ferroflux") for name in traced(step, *(t.detach() for t in (q, k, v))))


@pytest.mark.parametrize("dims", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["heads apart", "heads side by side"])
def test_results_with_dropout_lie_in_memory_as_those_of_flash_attention(dims):
    q = torch.empty_permuted((2, 4, 6, 8), dims).normal_()
    for p in (0.0, 0.2):
        out = attention.flash(q, q, q, p)[0]
        assert out.stride() == q.stride() and out.shape == q.shape


def test_masks_that_torch_converts_for_cudnn_are_truth_values(compiled):
    q, k, v = (torch.randn(1, 2, 6, 8, dtype=torch.bfloat16) for _ in range(3))
    shown = (torch.rand(1, 1, 6, 6) > 0.4) | torch.eye(6, dtype=torch.bool)
    shown[..., 2, :] = False

    def f(q, k, v, shown):
        mask = torch.where(shown, torch.scalar_tensor(0.0, dtype=q.dtype), torch.scalar_tensor(-65504.0, dtype=q.dtype))
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask)[0]

    found = compiled(f)(q, k, v, shown)
    true = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=shown)
    true[..., 2, :] = 0
    torch.testing.assert_close(found.double(), true, rtol=2e-2, atol=2e-2)
