"""Which operators PyTorch decomposes before the compiler sees a graph: those that its operator table does not have."""

from __future__ import annotations

import functools
from typing import Callable

import torch

from . import _native, attention, recurrent


@functools.cache
def table() -> dict[torch._ops.OpOverload, Callable]:
    """PyTorch's decompositions, less what the operator table has."""
    from torch._decomp import core_aten_decompositions, decomposition_table

    recurrent.state()
    # The core table comes last: where both have an operator its rule is the one that export uses.
    every = {**decomposition_table, **core_aten_decompositions()}
    every = {op: rule for op, rule in every.items() if isinstance(op, torch._ops.OpOverload)}
    every[torch.ops.aten.mkldnn_rnn_layer.default] = mkldnn_rnn_layer
    known = _native.known([str(op) for op in every])
    chosen = {op: rule for (op, rule), has in zip(every.items(), known) if not has}
    chosen[torch.ops.aten._linalg_det.default] = _of_transposed(torch.ops.aten._linalg_det.default)
    chosen[torch.ops.aten._linalg_slogdet.default] = _of_transposed(torch.ops.aten._linalg_slogdet.default)
    chosen.update(attention.rules())
    chosen[torch.ops.aten.cudnn_grid_sampler.default] = cudnn_grid_sampler
    chosen[torch.ops.aten.cudnn_grid_sampler_backward.default] = cudnn_grid_sampler_backward
    for name in ("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional"):
        op = getattr(torch.ops.aten, name).default
        if op in decomposition_table:
            chosen[op] = _in_half_precision(decomposition_table[op])
    return chosen


def _in_half_precision(rule: Callable) -> Callable:
    """Where running statistics are of 16 bits PyTorch's own formula decides their dtypes."""

    def chosen(input, weight, bias, running_mean, running_var, *rest):
        if running_mean is not None and running_mean.dtype in (torch.bfloat16, torch.float16):
            return rule(input, weight, bias, running_mean, running_var, *rest)
        return NotImplemented

    return chosen


def _of_transposed(op: torch._ops.OpOverload) -> Callable:
    """ATen factors the transpose of a contiguous matrix, and its gradient reads the factors as such."""

    def rule(A):
        if A.is_contiguous() and not A.is_complex() and A.shape[-1] > 1:
            return op(A.mT)
        return NotImplemented

    return rule


def mkldnn_rnn_layer(
    input, weight0, weight1, weight2, weight3, hx, cx, reverse, batch_sizes, mode, hidden_size, num_layers,
    has_biases, bidirectional, batch_first, train,
):  # fmt: skip
    """One layer of an LSTM, `[T, B, F]`, step by step: the operator that eager PyTorch runs on CPUs by its library."""
    from torch._decomp.decompositions import one_layer_lstm

    params = [weight0, weight1] + ([weight2, weight3] if has_biases else [])
    hidden = (hx.squeeze(0) if hx.dim() == 3 else hx, cx.squeeze(0) if cx.dim() == 3 else cx)
    y, (h, c) = one_layer_lstm(input, hidden, params, has_biases, reverse=reverse)
    return y, h.reshape(hx.shape), c.reshape(cx.shape), input.new_empty(0, dtype=torch.uint8)


def cudnn_grid_sampler(input, grid):
    """Bilinear, with zeros outside and corners aligned: what cuDNN's operator is chosen for."""
    return torch.ops.aten.grid_sampler_2d(input, grid, 0, 0, True)


def cudnn_grid_sampler_backward(input, grid, grad_output):
    return torch.ops.aten.grid_sampler_2d_backward(grad_output, input, grid, 0, 0, True, [True, True])
