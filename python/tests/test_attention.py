"""The rules for the attention operators of CUDA devices, computed on the CPU against attention in float64."""

import math

import pytest
import torch

from ferroflux import attention

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "shared heads": {"heads": 2},
    "other length": {"keys": 9},
    "bias": {"bias": (1, 1, 6, 6)},
    "bias of every head": {"bias": (2, 4, 6, 6)},
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
    return (weights if kept is None else weights * kept / (1 - p)) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("name", CASES)
def test_both_directions(name, p):
    (q, k, v, bias), is_causal, scale = given(**CASES[name])
    with torch.no_grad():
        mask = None if bias is None else bias.detach()
        out, sums, seed, _ = attention.efficient(q, k, v, mask, True, p, is_causal, scale=scale)
    kept = seed if p else None
    if p:
        assert seed.dtype == torch.bool and 0.5 < float(seed.double().mean()) < 0.9
    true, true_sums = reference(q, k, v, bias, is_causal, scale, kept, p)
    torch.testing.assert_close(out, true)
    torch.testing.assert_close(sums.double(), true_sums)
    grad = torch.randn_like(true)
    wanted = torch.autograd.grad(true, [t for t in (q, k, v, bias) if t is not None], grad)
    ask = [True, True, True, bias is not None]
    with torch.no_grad():
        found = attention.efficient_backward(grad, q, k, v, mask, out, sums, seed, seed, p, ask, is_causal, scale=scale)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_other_operators(p):
    (q, k, v, _), _, _ = given()
    grad = torch.randn_like(q)
    with torch.no_grad():
        out, sums, *_, seed, _, _ = attention.flash(q, k, v, p, True)
        of_flash = attention.flash_backward(grad, q, k, v, out, sums, None, None, 6, 6, p, True, seed, seed)
    true, _ = reference(q, k, v, None, True, None, seed if p else None, p)
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
