"""The attention operators that torch chooses for tensors of a CUDA device, in terms of the one that the compiler has.

Their additional results are sizes, states of torch's generator and logarithms of sums in layouts of their own. Here the
logarithms are `[B, H, L]`, and in the place of the generator's state stands what the backward needs of the random numbers:
the mask of dropout itself, `[B, H, L, S]`. Rules of AOTAutograd see to both directions, so the two always agree.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

aten = torch.ops.aten


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
    """The result, the logarithms of the sums `[B, H, L]` in float32, and the mask of dropout (empty without)."""
    key, value = _with_heads_of(query, key), _with_heads_of(query, value)
    if dropout_p == 0.0:
        operator = aten._scaled_dot_product_flash_attention_for_cpu.default
        wide = _of_one_size(query, key, value)
        out, sums = operator(*wide, 0.0, is_causal, attn_mask=bias, scale=_scale(query, scale))
        if wide[0] is not query or wide[2] is not value:
            # Rows of all heads side by side, as torch's operators have them.
            out = out.narrow(-1, 0, value.size(-1)).transpose(1, 2).contiguous().transpose(1, 2)
        return out, sums, query.new_empty(0)
    scores = _scores(query, key, bias, is_causal, scale)
    sums = scores.logsumexp(-1)
    weights = (scores - sums.masked_fill(sums == -math.inf, 0).unsqueeze(-1)).exp()
    kept = torch.rand_like(weights) >= dropout_p
    weights = weights * kept * (1 / (1 - dropout_p))
    return (weights.to(value.dtype) @ value), sums, kept


def _backward(grad, given, out, sums, kept, dropout_p, is_causal, scale, wants_bias) -> tuple[Any, Any, Any, Any]:
    """Gradients of queries, keys, values and the bias, which is ``None`` where it is not wanted."""
    query, key, value, bias = given
    wide_key, wide_value = _with_heads_of(query, key), _with_heads_of(query, value)
    sums = sums.reshape(sums.shape[:3])
    if dropout_p == 0.0 and not wants_bias:
        operator = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        grad, out, *wide = _of_one_size(grad, out, query, wide_key, wide_value)
        gradients = operator(grad, *wide, out, sums, 0.0, is_causal, attn_mask=bias, scale=_scale(query, scale))
        of_query, of_key, of_value = (g.narrow(-1, 0, t.size(-1)) for g, t in zip(gradients, given))
        return of_query, _of_heads(of_key, key), _of_heads(of_value, value), None
    scores = _scores(query, wide_key, bias, is_causal, scale)
    weights = (scores - sums.masked_fill(sums == -math.inf, 0).unsqueeze(-1)).exp()
    factor = kept.to(weights.dtype) * (1 / (1 - dropout_p)) if dropout_p else 1.0
    wide = grad.to(weights.dtype)
    of_weights = (wide @ wide_value.to(wide.dtype).mT) * factor
    deltas = (wide * out.to(wide.dtype)).sum(-1, keepdim=True)
    of_scores = weights * (of_weights - deltas)
    # Products with weights and gradients of scores are those of 16 bits, as in torch's kernels.
    of_products = (of_scores * _scale(query, scale)).to(query.dtype)
    of_query = of_products @ wide_key
    of_key = of_products.mT @ query
    of_value = (weights * factor).to(grad.dtype).mT @ grad
    of_bias = None if bias is None or not wants_bias else _summed(of_scores, bias).to(bias.dtype)
    return of_query, _of_heads(of_key, key), _of_heads(of_value, value), of_bias


def _of_one_size(*tensors):
    """Tensors whose rows are as long as the longest, by zeros, which neither products with queries nor sums of values see."""
    longest = max(tensors, key=lambda t: t.size(-1)).size(-1)
    return [t if t.size(-1) == longest else torch.nn.functional.pad(t, (0, longest - t.size(-1))) for t in tensors]


def _scale(query, scale):
    return 1 / math.sqrt(query.size(-1)) if scale is None else scale


def _scores(query, key, bias, is_causal, scale):
    """`q kᵀ scale + bias`, in float32 or wider."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).mT) * _scale(query, scale)
    if is_causal:
        rows = torch.arange(scores.size(-2), device=scores.device).unsqueeze(-1)
        scores = scores.masked_fill(torch.arange(scores.size(-1), device=scores.device) > rows, -math.inf)
    if bias is not None:
        scores = scores + bias.to(wide)
    return scores


def _with_heads_of(query, tensor):
    """Keys or values with a head for each of the queries', where groups of queries share one."""
    groups = query.size(1) // tensor.size(1)
    return tensor if groups == 1 else tensor.repeat_interleave(groups, 1)


def _of_heads(grad, tensor):
    """The gradient of keys or values from that of `_with_heads_of`."""
    return grad if grad.size(1) == tensor.size(1) else grad.unflatten(1, (tensor.size(1), -1)).sum(2)


def _summed(grad, tensor):
    """A gradient summed over the dimensions along which `tensor` was broadcast."""
    grad = grad.sum(list(range(grad.dim() - tensor.dim()))) if grad.dim() > tensor.dim() else grad
    dims = [d for d in range(grad.dim()) if tensor.size(d) == 1 and grad.size(d) != 1]
    return grad.sum(dims, keepdim=True) if dims else grad
