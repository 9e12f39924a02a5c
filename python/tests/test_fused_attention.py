"""Attention whose operands torch's fused operators do not take: one operator all the same, with eager PyTorch's results and strides."""

import pytest
import torch
import torch.nn.functional as F

from ferroflux import fused_attention, runner
from .conftest import same

FORWARD, BACKWARD = "_scaled_dot_product_flash_attention_for_cpu.default", "_scaled_dot_product_flash_attention_for_cpu_backward"


def turned(*sizes):
    """Rows lie side by side, not the elements of a head."""
    return torch.randn(*sizes[:-2], sizes[-1], sizes[-2]).transpose(-1, -2).requires_grad_()


def plain(*sizes):
    return torch.randn(*sizes, requires_grad=True)


def attend(q, k, v, **keywords):
    out = F.scaled_dot_product_attention(q, k, v, **keywords)
    # Torch's plain form returns rows in a piece, which programs may rely on.
    return out, out.view(-1, out.size(-1)) * 2


CASES = {
    "elements apart": (turned, (2, 3, 8, 16), {}),
    "elements apart, causal": (turned, (2, 3, 8, 16), {"is_causal": True}),
    "elements apart, a mask": (turned, (2, 3, 8, 16), {"attn_mask": torch.randn(2, 1, 8, 8)}),
    "three dimensions": (plain, (6, 8, 16), {}),
    "three dimensions, a mask of rows": (plain, (6, 8, 16), {"attn_mask": torch.rand(8, 8) > 0.3}),
    "three dimensions, a mask for each": (turned, (6, 8, 16), {"attn_mask": torch.randn(6, 8, 8)}),
    "two dimensions": (plain, (8, 16), {"is_causal": True, "scale": 0.3}),
}


@pytest.fixture
def texts(monkeypatch):
    found = []
    monkeypatch.setattr(runner, "LISTENERS", [lambda text, code: found.append(text)])
    return found


@pytest.mark.parametrize("case", CASES)
def test_is_one_operator(compiled, texts, case):
    make, sizes, keywords = CASES[case]
    ours = [make(*sizes) for _ in range(3)]
    eager = [t.detach().requires_grad_() for t in ours]
    f = compiled(lambda q, k, v: attend(q, k, v, **keywords))
    results, true = f(*ours), attend(*eager, **keywords)
    same(results, true, 1e-4)
    for found in (results, true):
        sum((t * torch.arange(t.numel()).view(t.shape).sin()).sum() for t in found).backward()
    for a, b in zip(ours, eager):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    forward, backward = texts
    assert FORWARD in forward and BACKWARD in backward, forward


BIAS = torch.randn(1, 8, 8, 3).permute(0, 3, 1, 2)
NAMED = {
    "a mask whose elements lie apart": (plain, (2, 3, 8, 16), {"attn_mask": BIAS}),
    "a mask that has a gradient": (plain, (2, 3, 8, 16), {"attn_mask": BIAS.clone().requires_grad_()}),
    "truth values": (plain, (2, 3, 8, 16), {"attn_mask": torch.rand(2, 1, 8, 8) > 0.3}),
    "truth values of rows": (plain, (6, 8, 16), {"attn_mask": torch.rand(8, 8) > 0.3, "scale": 0.3}),
    "causal": (plain, (2, 3, 8, 16), {"is_causal": True}),
}


@pytest.mark.parametrize("case", NAMED)
def test_is_named_where_torch_would_not_choose_it(compiled, texts, monkeypatch, case):
    """What happens for tensors of CUDA devices, here for those of the CPU."""
    monkeypatch.setattr(fused_attention.ask_for_fused, "__defaults__", (("cpu",),))
    # On the CPU torch chooses its plain form where there is dropout alone; here all row-major results count.
    monkeypatch.setattr(fused_attention, "_is_row_major", lambda t: True)
    make, sizes, keywords = NAMED[case]
    ours = [make(*sizes) for _ in range(3)]
    eager = [t.detach().requires_grad_() for t in ours]
    mask = keywords.get("attn_mask")
    f = compiled(lambda q, k, v: attend(q, k, v, **keywords))
    results, true = f(*ours), attend(*eager, **keywords)
    same(results, true, 1e-4)
    of_mask = []
    for found in (results, true):
        sum((t * torch.arange(t.numel()).view(t.shape).sin()).sum() for t in found).backward()
        if mask is not None and mask.requires_grad:
            of_mask.append(mask.grad.clone())
            mask.grad = None
    for a, b in zip(ours, eager):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    for a, b in zip(of_mask, of_mask[1:]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert FORWARD in texts[0], texts[0]


def test_heads_of_other_sizes_and_dropout_of_all_stay(compiled, monkeypatch):
    monkeypatch.setattr(fused_attention.ask_for_fused, "__defaults__", (("cpu",),))
    q, k, v = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 8, 16), torch.randn(2, 3, 8, 24)
    f = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    same(f(q, k, v), F.scaled_dot_product_attention(q, k, v), 1e-4)
    g = compiled(lambda q, k: F.scaled_dot_product_attention(q, k, k, dropout_p=1.0))
    assert g(q, k).shape == q.shape


def test_named_operator_has_the_dtype_of_autocast(compiled, texts, monkeypatch):
    monkeypatch.setattr(fused_attention.ask_for_fused, "__defaults__", (("cpu",),))
    monkeypatch.setattr(fused_attention, "_is_row_major", lambda t: True)
    q, k, v = (torch.randn(2, 3, 8, 16) for _ in range(3))
    mask = torch.rand(2, 1, 8, 8) > 0.3

    def f(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    found, true = compiled(f)(q, k, v), f(q, k, v)
    assert found.dtype == true.dtype
    torch.testing.assert_close(found, true, rtol=2e-2, atol=2e-2)


def test_sizes_stay_open(compiled, texts):
    f = compiled(lambda q, k, v: attend(q, k, v), dynamic=True)
    with torch.no_grad():
        for rows in (5, 9, 12):
            q, k, v = (turned(2, 3, rows, 16) for _ in range(3))
            same(f(q, k, v), attend(q, k, v), 1e-4)
    (text,) = texts
    assert FORWARD in text, text


def test_other_calls_stay(compiled, texts):
    """Five dimensions are torch's plain form."""
    q, k, v = (torch.randn(2, 2, 3, 8, 16) for _ in range(3))
    with torch.no_grad():
        same(compiled(attend)(q, k, v), attend(q, k, v), 1e-4)
    assert FORWARD not in texts[0]


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("keywords", [{}, {"is_causal": True}, {"attn_mask": torch.randn(2, 1, 8, 8)}], ids=["", "causal", "mask"])
def test_groups_of_queries_share_heads_of_keys_without_being_told(compiled, heads, keywords):
    """The operator that eager PyTorch's kernel for the CPU is; callers beside `scaled_dot_product_attention` pass it such heads."""
    attend = lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, **keywords)[0]
    ours = [plain(2, 4, 8, 16), plain(2, heads, 8, 16), plain(2, heads, 8, 16)]
    eager = [t.detach().requires_grad_() for t in ours]
    result, true = compiled(attend)(*ours), attend(*eager)
    torch.testing.assert_close(result, true, rtol=1e-4, atol=1e-4)
    for t in (result, true):
        (t * torch.arange(t.numel()).view(t.shape).sin()).sum().backward()
    for a, b in zip(ours, eager):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
