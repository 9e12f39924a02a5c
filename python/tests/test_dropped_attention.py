"""Attention that drops weights: the operators as torch runs them, against attention in float64 that drops the same weights, and training
steps that reach them, compiled. What is random is compared by the weights that the forward shows to have kept."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import rand_strided
from torch.fx.experimental.proxy_tensor import make_fx

from ferroflux import fused_attention, operators, partition, runner
from ferroflux.graph import Text

own = torch.ops.ferroflux
WORDS, FORWARD, BACKWARD = (f"ferroflux.{name}.default" for name in operators.SCHEMAS)


def reference(q, k, v, mask, kept, p, is_causal, scale):
    """The result and the logarithms of the sums in float64."""
    k, v = (t.repeat_interleave(q.size(1) // t.size(1), 1) for t in (k, v))
    scores = q @ k.mT * scale
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).nan_to_num()
    return weights * kept * operators.factor(p) @ v, scores.logsumexp(-1)


def bits_of(words, keys):
    """Truth values of the words, number by number."""
    rows = words.flatten(0, -2).tolist()
    found = [[row[j // 32] >> (j % 32) & 1 for j in range(keys)] for row in rows]
    return torch.tensor(found, dtype=torch.bool).view(*words.shape[:-1], keys)


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "whole words": {"keys": 64},
    "one key": {"keys": 1},
    "groups": {"heads": 2},
    "one head of keys": {"heads": 1, "is_causal": True},
    "other values": {"values": 5},
    "bias": {"mask": (2, 1, 6, 37)},
    "bias of keys": {"mask": (37,)},
    "truth values": {"mask": (2, 4, 6, 37), "truth": True, "heads": 2},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_both_directions_in_torch(name, dtype):
    case = {"heads": 4, "keys": 37, "values": 8, "mask": None, "truth": False, "is_causal": False} | CASES[name]
    keys, p, scale = case["keys"], 0.3, 0.4
    sizes = [(2, 4, 6, 8), (2, case["heads"], keys, 8), (2, case["heads"], keys, case["values"])]
    q, k, v = (torch.randn(s, dtype=torch.float64).to(dtype) for s in sizes)
    mask = None if case["mask"] is None else torch.randn(case["mask"], dtype=torch.float64).to(dtype)
    if case["truth"]:
        mask = mask > 0
        # A row that sees nothing.
        mask[0, 0, 0] = False
    words = own.kept_weights(q, keys, p)
    out, sums = own.attention(q, k, v, mask, words, p, case["is_causal"], scale)
    double = [t.double().requires_grad_() for t in (q, k, v)]
    shown = mask if mask is None or case["truth"] else mask.double()
    true, true_sums = reference(*double, shown, bits_of(words, keys), p, case["is_causal"], scale)
    grad = torch.randn_like(true).to(dtype)
    wanted = torch.autograd.grad(true, double, grad.double())
    optional = (mask, words, p, case["is_causal"], scale)
    found = own.attention_backward(grad, q, k, v, out, sums, *optional)
    assert out.dtype == dtype and sums.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert [t.dtype for t in found] == [dtype] * 3
    close = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype]
    for a, b in zip((out, sums, *found), (true, true_sums, *wanted)):
        torch.testing.assert_close(a.double(), b, rtol=close, atol=close)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.3, 1e-9, 1 - 1e-9])
def test_bits_are_set_with_the_probability_to_keep(p):
    words = own.kept_weights(torch.empty(4, 8, 64, 1), 1000, p)
    assert words.shape == (4, 8, 64, 32) and words.dtype == torch.int32
    kept = operators.kept(words, 1000).double()
    count, chance = kept.numel(), 1 / operators.factor(p)
    assert abs(chance - (1 - p)) < 2**-16
    # Five standard deviations, of all bits, and of each place in a word.
    close = lambda found, count: abs(found - chance) < 5 * math.sqrt(chance * (1 - chance) / count)
    assert close(float(kept.mean()), count)
    places = operators.kept(words, 1024).double().view(-1, 32).mean(0)
    assert all(close(float(place), words.numel()) for place in places)
    # Bits beside one another, in a word and in two rows, do not go together.
    both = (kept[..., 1:] * kept[..., :-1]).mean(), (kept[:, :, 1:] * kept[:, :, :-1]).mean()
    assert all(abs(float(found) - chance**2) < 5 / math.sqrt(count) for found in both)


def test_seeds_repeat_words_and_calls_do_not():
    q = torch.empty(2, 2, 8, 4)
    first, second = own.kept_weights(q, 40, 0.5), own.kept_weights(q, 40, 0.5)
    torch.manual_seed(0)
    assert torch.equal(first, own.kept_weights(q, 40, 0.5)) and not torch.equal(first, second)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.5, math.nan])
def test_probabilities_that_drop_nothing_or_everything_are_refused(p):
    with pytest.raises(ValueError, match="between 0 and 1"):
        own.kept_weights(torch.empty(1, 1, 2, 4), 3, p)


STRIDES = {
    "heads apart": (768, 128, 16, 1),
    "heads side by side": (768, 16, 64, 1),
    "in a larger tensor": (2304, 16, 192, 1),
}


@pytest.mark.parametrize("values", [16, 24])
@pytest.mark.parametrize("name", STRIDES)
def test_fake_results_are_what_torch_gives(name, values):
    """Sizes, strides and dtypes, which a compiled part beside one that torch runs relies on."""
    q = rand_strided((2, 4, 8, 16), STRIDES[name])
    k, v = torch.randn(2, 2, 40, 16), torch.randn(2, 2, 40, values)
    words = own.kept_weights(q, 40, 0.2)
    out, sums = own.attention(q, k, v, None, words, 0.2, False, 0.25)
    rest = (None, words, 0.2, False, 0.25)
    torch.library.opcheck(own.kept_weights, (q, 40, 0.2), test_utils=("test_schema", "test_faketensor"))
    for operator, given in ((own.attention, (q, k, v)), (own.attention_backward, (out, q, k, v, out, sums))):
        torch.library.opcheck(operator, (*given, *rest), test_utils=("test_schema", "test_faketensor"))


def test_open_sizes_become_text():
    def step(q, k, v, grad):
        words = own.kept_weights(q, k.size(2), 0.2)
        rest = (None, words, 0.2, True, 0.25)
        out, sums = own.attention(q, k, v, *rest)
        return own.attention_backward(grad, q, k, v, out, sums, *rest)

    q, k = torch.randn(2, 3, 8, 16), torch.randn(2, 3, 40, 16)
    gm = make_fx(step, tracing_mode="symbolic")(q, k, k, q)
    text = Text(gm, set()).convert(list(gm.graph.output_node().args[0]))
    (words,) = [line for line in text.splitlines() if WORDS in line]
    assert "// 32" in words.split(" = ")[0], words
    (call,) = [line for line in text.splitlines() if FORWARD + "(" in line]
    assert call.endswith(", none, %kept_weights, 0.2, true, 0.25)"), call
    assert BACKWARD + "(" in text


@pytest.fixture
def texts(monkeypatch):
    found = []
    monkeypatch.setattr(runner, "LISTENERS", [lambda text, code: found.append(text)])
    return found


def kept(monkeypatch):
    """What forward graphs keep for their backward graphs, by the graph: shapes and dtypes of their results."""
    found, real = [], partition.partition

    def watched(joint, inputs, **keywords):
        forward, backward = real(joint, inputs, **keywords)
        results = [node.meta["val"] for node in forward.graph.output_node().args[0]]
        found.append([(tuple(t.shape), t.dtype) for t in results if isinstance(t, torch.Tensor)])
        return forward, backward

    monkeypatch.setattr(partition, "partition", watched)
    return found


P, SIZES = 0.25, (2, 3, 40, 40)
STEPS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "a mask": {"attn_mask": torch.randn(2, 1, 40, 40)},
    "a mask that has a gradient": {"attn_mask": torch.randn(1, 3, 40, 40).requires_grad_()},
    "truth values": {"attn_mask": (torch.rand(2, 1, 40, 40) > 0.3) | torch.eye(40, dtype=torch.bool)},
    "three dimensions": {"sizes": (6, 40, 40)},
    "groups": {"heads": 1, "enable_gqa": True},
}


def operands(sizes, heads):
    """Queries, keys and values of one. A result is then the weights, where they are kept."""
    q, k = torch.randn(sizes), torch.randn((*sizes[:-3], heads, *sizes[-2:]))
    v = torch.eye(sizes[-1]).expand(k.shape).contiguous()
    return [t.requires_grad_() for t in (q, k, v)]


def true_gradients(given, mask, dropped, grad, keywords):
    """The result and all gradients, where the same weights are dropped, in float64."""
    double = [t.detach().double().requires_grad_() for t in given]
    bias = None
    if mask is not None:
        bias = mask.detach().double().requires_grad_() if mask.is_floating_point() else mask
    wide = [t if t.dim() == 4 else t.unsqueeze(0) for t in double]
    scale = keywords.get("scale") or 1 / math.sqrt(given[0].size(-1))
    out, _ = reference(*wide, bias, dropped, P, keywords.get("is_causal", False), scale)
    asked = [*double, bias] if mask is not None and mask.requires_grad else double
    return [out.view(grad.shape), *torch.autograd.grad(out.view(grad.shape), asked, grad.double())]


@pytest.mark.parametrize("name", STEPS)
def test_both_passes_drop_the_same_weights(compiled, texts, name):
    keywords = dict(STEPS[name])
    sizes = keywords.pop("sizes", SIZES)
    given = operands(sizes, keywords.pop("heads", sizes[-3]))
    mask = keywords.get("attn_mask")
    out = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=P, **keywords))(*given)
    assert out.is_contiguous()
    dropped = (out != 0).view(2 if len(sizes) == 4 else 1, -1, 40, 40)
    seen = out.numel() if not keywords.get("is_causal") else out.numel() * 41 / 80
    if mask is None or mask.dtype != torch.bool:
        assert abs(float(dropped.sum()) / seen - (1 - P)) < 0.03
    grad = torch.randn_like(out)
    asked = [*given, mask] if mask is not None and mask.requires_grad else given
    found = torch.autograd.grad(out, asked, grad)
    for a, b in zip((out, *found), true_gradients(given, mask, dropped, grad, keywords)):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
    forward, backward = texts
    assert WORDS in forward and FORWARD in forward and "softmax" not in forward, forward
    assert WORDS not in backward and (BACKWARD in backward) == (len(asked) == 3), backward


@pytest.mark.parametrize("bias", [None, (2, 1, 1, 40), (1, 3, 1, 1)])
def test_words_are_kept_for_the_backward_and_no_scores(compiled, monkeypatch, bias):
    found = kept(monkeypatch)
    q, k, v = (torch.randn(2, 3, n, 16, requires_grad=True) for n in (24, 40, 40))
    mask = None if bias is None else torch.randn(bias, requires_grad=True)
    attend = lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=P)
    f = compiled(attend, options={"cache": False})
    f(q, k, v, mask).sum().backward()
    assert all(t.grad is not None for t in (q, k, v, *([] if mask is None else [mask])))
    (shapes,) = found
    assert all(shape[-2:] != (24, 40) for shape, _ in shapes), shapes
    assert ((2, 3, 24, 2), torch.int32) in shapes, shapes


def test_calls_with_the_same_queries_drop_other_weights(compiled, texts):
    q, k, v = operands(SIZES, 3)
    attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=P)
    a, b = compiled(lambda q, k, v: (attend(q, k, v), attend(q, k + 1, v)))(q, k, v)
    assert not torch.equal(a == 0, b == 0)
    assert texts[0].count(WORDS) == 2


def test_words_are_saved_where_the_rest_is_computed_again(compiled, texts):
    """Attention under activation checkpointing drops the same weights when it is computed again."""
    from torch.utils.checkpoint import checkpoint

    attend = lambda q, k, v: F.scaled_dot_product_attention(q.sin(), k.sin(), v, dropout_p=P).cos()
    given = operands(SIZES, 3)
    out = compiled(lambda q, k, v: checkpoint(attend, q, k, v, use_reentrant=False))(*given)
    dropped = out != 1
    grad = torch.randn_like(out)
    double = [t.detach().double().requires_grad_() for t in given]
    q, k, v = double
    true = reference(q.sin(), k.sin(), v, None, dropped, P, False, 1 / math.sqrt(40))[0].cos()
    wanted = torch.autograd.grad(true, double, grad.double())
    found = torch.autograd.grad(out, given, grad)
    for a, b in zip((out, *found), (true, *wanted)):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
    forward, backward = texts
    assert WORDS in forward and FORWARD in forward and WORDS not in backward and FORWARD in backward, backward


def test_under_autocast(compiled, texts):
    given = operands(SIZES, 3)

    def attend(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=P)

    out = compiled(attend)(*given)
    assert out.dtype == torch.bfloat16
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, given, grad)
    for a, b in zip((out, *found), true_gradients(given, None, out != 0, grad, {})):
        torch.testing.assert_close(a.double(), b, rtol=5e-2, atol=5e-2)
    assert FORWARD in texts[0] and BACKWARD in texts[1]


def test_sizes_stay_open(compiled, texts):
    f = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=P), dynamic=True)
    # A single word of bits would have a graph of its own.
    for keys in (33, 64, 100):
        q, k, v = (torch.randn(2, 3, n, 16, requires_grad=True) for n in (7, keys, keys))
        out = f(q, k, v)
        found = torch.autograd.grad(out.sum(), (q, k, v))
        assert [t.shape for t in found] == [q.shape, k.shape, v.shape]
    assert len(texts) == 2 and FORWARD in texts[0]


@pytest.mark.parametrize("name", ["plain", "truth values", "three dimensions"])
def test_aotautograds_results_may_be_kept(compiled, name):
    keywords = dict(STEPS[name])
    sizes = keywords.pop("sizes", SIZES)
    given = operands(sizes, sizes[-3])
    counted = torch._dynamo.utils.counters["aot_autograd"]
    before = counted["autograd_cache_bypass"]
    compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=P, **keywords))(*given).sum().backward()
    assert counted["autograd_cache_bypass"] == before


def test_torchs_own_numbers_are_drawn_where_they_are_wanted(compiled):
    q, k, v = (torch.randn(2, 3, 8, 16) for _ in range(3))
    attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=P)
    f = torch.compile(attend, backend="ferroflux", options={"random": "torch"})
    torch.manual_seed(5)
    true = attend(q, k, v)
    torch.manual_seed(5)
    torch.testing.assert_close(f(q, k, v), true, rtol=1e-4, atol=1e-5)


def test_calls_without_dropout_and_with_dropout_of_all_stay(compiled, texts):
    q, k, v = (torch.randn(2, 3, 8, 16) for _ in range(3))
    for p in (0.0, 1.0):
        f = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=p))
        torch.testing.assert_close(f(q, k, v), F.scaled_dot_product_attention(q, k, v, dropout_p=p), rtol=1e-4, atol=1e-5)
    assert not any("ferroflux." in text for text in texts)


def test_the_key_of_caches_has_the_operators():
    from ferroflux import aot_cache

    read, found = aot_cache.pathlib.Path.read_bytes, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aot_cache.pathlib.Path, "read_bytes", lambda path: found.append(path.name) or read(path))
        aot_cache.sources.__wrapped__()
    assert {"operators.py", "attention.py"} <= set(found)


def test_drops_only_by_a_number_between():
    call = lambda p: torch.fx.Graph().call_function(F.scaled_dot_product_attention, (None,) * 3, {"dropout_p": p})
    assert [fused_attention._drops(call(p)) for p in (0.0, 0.1, 1, None)] == [False, True, False, False]


def test_the_compiler_has_the_operators():
    from ferroflux import _native

    assert all(_native.known([WORDS, FORWARD, BACKWARD]))
