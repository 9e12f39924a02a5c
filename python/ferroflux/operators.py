"""Attention that drops weights, as operators of torch's: ``ferroflux::kept_weights``, ``attention`` and ``attention_backward``.

Both passes read which weights are kept from words of 32 bits, a sixteenth of what scores of 16 bits take. Compiled code has the operators.
Here are their schemas, the sizes and strides of their results, and their meaning in torch's own operators, by which torch runs them in a
part of a graph that is not compiled; that keeps all scores in memory.

Not here: which of torch's operators become these (``attention``).
"""

from __future__ import annotations

import math

import torch
from torch._functorch import compile_utils

KEYS = 32
"""Keys of a word: bit ``j % 32`` of word ``j / 32`` says whether the weight of key ``j`` is kept."""
DIGITS = 16
"""Binary digits of the probability that count, as in compiled code: it is off by 2⁻¹⁷ at most, next to 0 and 1 by 2⁻¹⁶."""

OPTIONAL = "Tensor? attn_mask, Tensor kept, float p, bool is_causal, float scale"
SCHEMAS = {
    "kept_weights": "(Tensor query, SymInt keys, float p) -> Tensor",
    "attention": f"(Tensor query, Tensor key, Tensor value, {OPTIONAL}) -> (Tensor, Tensor)",
    "attention_backward": "(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    f"{OPTIONAL}) -> (Tensor, Tensor, Tensor)",
}
TAGS = {"kept_weights": (torch.Tag.nondeterministic_seeded,)}

_library = torch.library.Library("ferroflux", "FRAGMENT")
for _name, _schema in SCHEMAS.items():
    _library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag, *TAGS.get(_name, ())))

# torch takes two calls with the same arguments for one expression, but for those in this list, whatever the tags say.
compile_utils.rand_ops.append(torch.ops.ferroflux.kept_weights)


def is_drawn(target: object) -> bool:
    """Whether an operator draws words: another call gives others."""
    return target is torch.ops.ferroflux.kept_weights.default


# -- words ------------------------------------------------------------------------------------------------------------------


def chance(p: float) -> int:
    """The probability to keep a weight, in units of 2⁻¹⁶, neither never nor always."""
    if not 0 < p < 1:
        raise ValueError(f"ferroflux: weights are dropped with a probability between 0 and 1, not {p}")
    unit = 1 << DIGITS
    return min(max(math.floor((1 - p) * unit + 0.5), 1), unit - 1)


def factor(p: float) -> float:
    """What a weight that is kept is multiplied by: the inverse of the probability with which a bit is set."""
    return (1 << DIGITS) / chance(p)


def kept(words: torch.Tensor, keys: int) -> torch.Tensor:
    """The words ``[…, keys / 32]`` as truth values ``[…, keys]``."""
    places = torch.arange(KEYS, dtype=torch.int32, device=words.device)
    bits = torch.bitwise_right_shift(words.unsqueeze(-1), places) & 1
    return bits.flatten(-2).narrow(-1, 0, keys) != 0


def factors(words: torch.Tensor, keys: int, p: float, dtype: torch.dtype) -> torch.Tensor:
    """What each weight is multiplied by, ``[…, keys]``."""
    return kept(words, keys).to(dtype) * factor(p)


def _sizes_of_words(query: torch.Tensor, keys: int) -> list[int]:
    return [*query.shape[:-1], (keys + KEYS - 1) // KEYS]


@torch.library.impl(_library, "kept_weights", "CompositeExplicitAutograd")
def _kept_weights(query: torch.Tensor, keys: int, p: float) -> torch.Tensor:
    """A bit is set if a random binary fraction is below the probability: 32 fractions are compared at once, from their last digit on. The
    result so far is right where the probability has the digit that a fraction has."""
    wanted = chance(p)
    sizes = _sizes_of_words(query, keys)
    draw = lambda: torch.randint(-(2**31), 2**31, sizes, dtype=torch.int32, device=query.device)
    last = (wanted & -wanted).bit_length() - 1
    bits = draw()
    for digit in range(last + 1, DIGITS):
        bits = bits | draw() if wanted >> digit & 1 else bits & draw()
    return bits


@torch.library.register_fake("ferroflux::kept_weights", lib=_library)
def _(query: torch.Tensor, keys: int, p: float) -> torch.Tensor:
    return query.new_empty(_sizes_of_words(query, keys), dtype=torch.int32)


# -- attention ---------------------------------------------------------------------------------------------------------------


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scores and sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def with_heads_of(query: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Keys or values with a head for each of the queries', where groups of queries share one."""
    groups = query.size(1) // tensor.size(1)
    return tensor if groups == 1 else tensor.repeat_interleave(groups, 1)


def of_heads(grad: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The gradient of keys or values from that of `with_heads_of`."""
    return grad if grad.size(1) == tensor.size(1) else grad.unflatten(1, (tensor.size(1), -1)).sum(2)


def hidden_behind(rows: int, keys: int, device: torch.device) -> torch.Tensor:
    """Truth values ``[rows, keys]``: the keys that come after a row's own position."""
    return torch.arange(keys, device=device) > torch.arange(rows, device=device).unsqueeze(-1)


def scores_of(query, key, mask, is_causal: bool, scale: float) -> torch.Tensor:
    """``q kᵀ scale + mask`` in float32 or wider, minus infinity where a truth value hides a key. There is a head of keys for each of queries."""
    wide = wide_dtype(query.dtype)
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    if is_causal:
        scores = scores.masked_fill(hidden_behind(scores.size(-2), scores.size(-1), scores.device), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask.dtype == torch.bool else scores + mask.to(wide)
    return scores


def weights_of(scores: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """``exp(scores - sums)``, zero in rows in which every key is hidden."""
    return (scores - sums.masked_fill(sums == -math.inf, 0).unsqueeze(-1)).exp()


def gradients(grad, query, key, value, out, weights, factors, scale: float) -> tuple[torch.Tensor, ...]:
    """Gradients of queries, keys, values and scores, for weights before they are multiplied by the factors."""
    wide = grad.to(weights.dtype)
    of_weights = (wide @ value.to(wide.dtype).mT) * factors
    deltas = (wide * out.to(wide.dtype)).sum(-1, keepdim=True)
    of_scores = weights * (of_weights - deltas)
    # Products with weights and gradients of scores are those of 16 bits, as in torch's kernels.
    of_products = (of_scores * scale).to(query.dtype)
    of_value = (weights * factors).to(grad.dtype).mT @ grad
    return of_products @ key, of_products.mT @ query, of_value, of_scores


def _new_result(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Memory for a result: as that of queries, or with the rows of all heads side by side where values have another size."""
    if value.size(-1) == query.size(-1):
        return torch.empty_like(query)
    return _side_by_side([*query.shape[:-1], value.size(-1)], query)


def _side_by_side(sizes, like: torch.Tensor) -> torch.Tensor:
    return torch.empty_permuted(sizes, (0, 2, 1, 3), dtype=like.dtype, device=like.device)


@torch.library.impl(_library, "attention", "CompositeExplicitAutograd")
def _attention(query, key, value, attn_mask, kept, p, is_causal, scale):
    scores = scores_of(query, with_heads_of(query, key), attn_mask, is_causal, scale)
    sums = scores.logsumexp(-1)
    weights = weights_of(scores, sums) * factors(kept, key.size(2), p, scores.dtype)
    out = weights.to(value.dtype) @ with_heads_of(query, value)
    return _new_result(query, value).copy_(out), sums


@torch.library.register_fake("ferroflux::attention", lib=_library)
def _(query, key, value, attn_mask, kept, p, is_causal, scale):
    return _new_result(query, value), query.new_empty(query.shape[:-1], dtype=wide_dtype(query.dtype))


@torch.library.impl(_library, "attention_backward", "CompositeExplicitAutograd")
def _attention_backward(grad_out, query, key, value, out, logsumexp, attn_mask, kept, p, is_causal, scale):
    wide_key, wide_value = with_heads_of(query, key), with_heads_of(query, value)
    weights = weights_of(scores_of(query, wide_key, attn_mask, is_causal, scale), logsumexp)
    of_weights = factors(kept, key.size(2), p, weights.dtype)
    of_query, of_key, of_value, _ = gradients(grad_out, query, wide_key, wide_value, out, weights, of_weights, scale)
    found = (of_query, of_heads(of_key, key), of_heads(of_value, value))
    return tuple(_side_by_side(t.shape, t).copy_(g) for t, g in zip((query, key, value), found))


@torch.library.register_fake("ferroflux::attention_backward", lib=_library)
def _(grad_out, query, key, value, out, logsumexp, attn_mask, kept, p, is_causal, scale):
    return tuple(_side_by_side(t.shape, t) for t in (query, key, value))
