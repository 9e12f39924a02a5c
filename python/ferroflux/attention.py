"""The attention operators that torch chooses for tensors of a CUDA device, in terms of those that the compiler has.

Their additional results are sizes, states of torch's generator and logarithms of sums in layouts of their own. Here the
logarithms are `[B, H, L]`, and in the place of the generator's state stands what the backward needs of the random numbers:
a bit for each weight, whether it is kept, in words `[B, H, L, S / 32]`. Rules of AOTAutograd see to both directions, so the two
always agree.

Not here: what the operators with dropout are (``operators``).
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from . import operators
from .operators import of_heads, with_heads_of

aten = torch.ops.aten
own = torch.ops.ferroflux


def rules() -> dict[torch._ops.OpOverload, Callable]:
    """The rules by operator."""
    return {
        aten._scaled_dot_product_flash_attention.default: flash,
        aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
        aten._scaled_dot_product_efficient_attention.default: efficient,
        aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
        aten._scaled_dot_product_cudnn_attention.default: cudnn,
        aten._scaled_dot_product_cudnn_attention_backward.default: cudnn_backward,
    }


def flash(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, sums, kept = _forward(query, key, value, None, dropout_p, is_causal, scale)
    empty = query.new_empty(0)
    return out, sums, None, None, query.size(2), key.size(2), kept, empty, empty


def flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
    philox_offset, *, scale=None,
):  # fmt: skip
    given = (query, key, value, None)
    return _backward(grad_out, given, out, logsumexp, philox_seed, dropout_p, is_causal, scale, False)[:3]


def efficient(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    out, sums, kept = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return out, sums, kept, query.new_empty(0)


def efficient_backward(
    grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask,
    is_causal=False, *, scale=None,
):  # fmt: skip
    given = (query, key, value, attn_bias)
    wants_bias = attn_bias is not None and grad_input_mask[3]
    return _backward(grad_out_, given, out, logsumexp, philox_seed, dropout_p, is_causal, scale, wants_bias)


def cudnn(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
):
    out, sums, kept = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    empty = query.new_empty(0)
    return out, sums, None, None, query.size(2), key.size(2), kept, empty, empty


def cudnn_backward(
    grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k,
    dropout_p, is_causal, *, scale=None,
):  # fmt: skip
    given = (query, key, value, attn_bias)
    return _backward(grad_out, given, out, logsumexp, philox_seed, dropout_p, is_causal, scale, False)[:3]


def _forward(query, key, value, bias, dropout_p, is_causal, scale):
    """The result, the logarithms of the sums `[B, H, L]` in float32 or wider, and the words of kept weights (empty without dropout)."""
    if dropout_p >= 1.0:
        out, sums, none = _forward(query, key, value, bias, 0.0, is_causal, scale)
        return torch.zeros_like(out), sums, none
    key, value = with_heads_of(query, key), with_heads_of(query, value)
    mask, is_causal = _one_mask(query, key, bias, is_causal)
    if dropout_p == 0.0:
        operator = aten._scaled_dot_product_flash_attention_for_cpu.default
        wide = _of_one_size(query, key, value)
        out, sums = operator(*wide, 0.0, is_causal, attn_mask=mask, scale=_scale(query, scale))
        if wide[0] is not query or wide[2] is not value:
            # Rows of all heads side by side, as torch's operators have them.
            out = out.narrow(-1, 0, value.size(-1)).transpose(1, 2).contiguous().transpose(1, 2)
        return out, sums, query.new_empty(0)
    kept = own.kept_weights.default(query, key.size(2), dropout_p)
    out, sums = own.attention.default(query, key, value, mask, kept, dropout_p, is_causal, _scale(query, scale))
    return out, sums, kept


def _backward(grad, given, out, sums, kept, dropout_p, is_causal, scale, wants_bias) -> tuple[Any, Any, Any, Any]:
    """Gradients of queries, keys, values and the bias, which is ``None`` where it is not wanted."""
    query, key, value, bias = given
    if dropout_p >= 1.0:
        return (*map(torch.zeros_like, given[:3]), torch.zeros_like(bias) if wants_bias else None)
    if wants_bias:
        return _through_scores(grad, given, out, sums, kept, dropout_p, is_causal, _scale(query, scale))
    wide_key, wide_value = with_heads_of(query, key), with_heads_of(query, value)
    sums = sums.reshape(sums.shape[:3])
    mask, is_causal = _one_mask(query, key, bias, is_causal)
    if dropout_p == 0.0:
        operator = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        grad, out, *wide = _of_one_size(grad, out, query, wide_key, wide_value)
        found = operator(grad, *wide, out, sums, 0.0, is_causal, attn_mask=mask, scale=_scale(query, scale))
        found = [g.narrow(-1, 0, t.size(-1)) for g, t in zip(found, given)]
    else:
        optional = (mask, kept, dropout_p, is_causal, _scale(query, scale))
        found = own.attention_backward.default(grad, query, wide_key, wide_value, out, sums, *optional)
    return found[0], of_heads(found[1], key), of_heads(found[2], value), None


def _through_scores(grad, given, out, sums, kept, dropout_p, is_causal, scale):
    """All gradients where that of the bias is wanted, which is as large as the scores but for what is broadcast."""
    query, key, value, bias = given
    wide_key, wide_value = with_heads_of(query, key), with_heads_of(query, value)
    scores = operators.scores_of(query, wide_key, bias, is_causal, scale)
    weights = operators.weights_of(scores, sums.reshape(sums.shape[:3]))
    factors = operators.factors(kept, key.size(2), dropout_p, weights.dtype) if dropout_p else 1.0
    found = operators.gradients(grad, query, wide_key, wide_value, out, weights, factors, scale)
    of_query, of_key, of_value, of_scores = found
    return of_query, of_heads(of_key, key), of_heads(of_value, value), _summed(of_scores, bias).to(bias.dtype)


def _one_mask(query, key, bias, is_causal):
    """A bias and the order of positions, which exclude each other, as one of both."""
    if bias is None or not is_causal:
        return bias, is_causal
    return bias.masked_fill(operators.hidden_behind(query.size(2), key.size(2), bias.device), -math.inf), False


def _of_one_size(*tensors):
    """Tensors whose rows are as long as the longest, by zeros, which neither products with queries nor sums of values see."""
    longest = max(tensors, key=lambda t: t.size(-1)).size(-1)
    return [t if t.size(-1) == longest else torch.nn.functional.pad(t, (0, longest - t.size(-1))) for t in tensors]


def _scale(query, scale):
    return 1 / math.sqrt(query.size(-1)) if scale is None else scale


def _summed(grad, tensor):
    """A gradient summed over the dimensions along which `tensor` was broadcast."""
    grad = grad.sum(list(range(grad.dim() - tensor.dim()))) if grad.dim() > tensor.dim() else grad
    dims = [d for d in range(grad.dim()) if tensor.size(d) == 1 and grad.size(d) != 1]
    return grad.sum(dims, keepdim=True) if dims else grad
