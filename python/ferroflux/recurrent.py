"""The shapes of what ``aten::_cudnn_rnn_backward`` gives, which torch does not state: without them a training step that calls cuDNN's
recurrent layers is not captured.

Not here: what the operators compute. The compiler has them; their forward's shapes are torch's own.
"""

from __future__ import annotations

import functools

import torch

NAME = "aten::_cudnn_rnn_backward"

_library = torch.library.Library("aten", "IMPL")


def shapes(
    input, weight, weight_stride0, weight_buf, hx, cx, output, grad_output, grad_hy, grad_cy, mode, hidden_size, proj_size,
    num_layers, batch_first, dropout, train, bidirectional, batch_sizes, dropout_state, reserve, output_mask,
):  # fmt: skip
    """Gradients of the input, in whose memory time comes first, of both states and of each weight; ``None`` where none is wanted."""
    like = lambda t: t.new_empty(t.shape)
    swapped = batch_first and len(batch_sizes) == 0
    of_input = like(input.transpose(0, 1)).transpose(0, 1) if swapped else like(input)
    found = (of_input, like(hx), None if cx is None else like(cx))
    of_weights = [like(w) for w in weight] if output_mask[3] else []
    return *(t if wanted else None for t, wanted in zip(found, output_mask)), of_weights


@functools.cache
def state() -> None:
    """Tells torch the shapes, where it has none of its own."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(NAME, "Meta"):
        _library.impl(NAME.removeprefix("aten::"), shapes, "Meta")


def has_backward(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph has cuDNN's backward, which torch cannot run in place of compiled code: what cuDNN keeps is not there."""
    return bool(gm.graph.find_nodes(op="call_function", target=torch.ops.aten._cudnn_rnn_backward.default))
