"""Calls of ``scaled_dot_product_attention`` in the form for which torch chooses a fused operator.

AOTAutograd replaces such a call by one of torch's fused operators, which the compiler has, or else by the products and the softmax
that attention is made of, whose weights a training step keeps. torch's own kernels decide which: they want four dimensions, and the
elements of a head side by side. The compiler's do not, so that calls are given that form before AOTAutograd sees them; it does away
with the copies. On CUDA devices torch's kernels also want masks whose elements lie side by side, at multiples of 16 bytes; there the
operator that takes a mask is called by its own name wherever torch would choose the plain form. So it is on the CPU where weights are
dropped, for which torch has no fused operator there.

What is added to a graph are calls of ATen's operators: torch's cache of AOTAutograd's results takes methods of graphs' own nodes alone.

Not here: the operators that torch chooses for a device (``attention``), and attention in other words, which the compiler recognises itself.
"""

from __future__ import annotations

import math
import operator
from typing import Collection

import torch
from torch.fx import GraphModule, Node

from . import operators  # noqa: F401 (registers torch.ops.ferroflux)
from .runner import expression

aten = torch.ops.aten

TARGETS = {torch._C._nn.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention}
"""What TorchDynamo calls the operator."""
MASKED = {
    aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    torch.ops.ferroflux.attention.default, torch.ops.ferroflux.attention_backward.default,
}  # fmt: skip
"""What the operators with masks are in a graph of AOTAutograd's (`attention`)."""
FILL_OF_CUDNN = -65504.0
RANK = 4
"""Dimensions of the operands of fused operators: batch, heads, rows, elements."""
FUSED = aten._scaled_dot_product_efficient_attention.default
"""The fused operator that takes masks and dropout (`attention` has its meaning, whatever the device)."""
PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""The parameters of a call that may be given by position, in their order."""


def ask_for_fused(gm: GraphModule, named: Collection[str] = ("cuda",), *, dropped: Collection[str] = ()) -> None:
    """Rewrites the calls of a graph and of the graphs in it. On devices of the types `named` the operator is named, on those of the types
    `dropped` where weights are dropped."""
    for part in gm.modules():
        if not isinstance(part, GraphModule):
            continue
        calls = [node for node in part.graph.nodes if node.op == "call_function" and node.target in TARGETS]
        kinds = {call: {*named, *dropped} if _drops(call) else named for call in calls}
        if any([_named(part, call, kinds[call]) or _rewritten(part, call) for call in calls]):
            part.recompile()


def hide_by_infinity(gm: GraphModule) -> None:
    """Makes masks that torch has converted for cuDNN's attention what truth values mean: a key that is not to be seen is hidden. There they
    become −65504, by which rows without any key would see all of them, and which the compiler could not take for truth values."""
    changed = False
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.where.self)):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype != torch.bfloat16 or len(node.args) != 3:
            continue
        shown, hidden = (_number(arg) for arg in node.args[1:])
        if (shown, hidden) == (0.0, FILL_OF_CUDNN) and node.users and all(user.target in MASKED for user in node.users):
            fill = node.args[2]
            with gm.graph.inserting_before(fill):
                infinite = gm.graph.call_function(fill.target, (-math.inf, *fill.args[1:]), dict(fill.kwargs))
            infinite.meta = dict(fill.meta)
            node.update_arg(2, infinite)
            changed = True
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()


def _number(node: object) -> float | None:
    """The number that a tensor without dimensions is made of."""
    known = isinstance(node, Node) and node.target is aten.scalar_tensor.default
    return float(node.args[0]) if known and isinstance(node.args[0], (int, float)) else None


def _drops(call: Node) -> bool:
    """Whether a call drops some of the weights."""
    p = _given(call).get("dropout_p", 0.0)
    return isinstance(p, (int, float)) and 0 < p < 1


def _given(call: Node) -> dict[str, object]:
    """The arguments of a call by their parameters."""
    return dict(zip(PARAMETERS, call.args)) | call.kwargs


def _named(gm: GraphModule, call: Node, devices: Collection[str]) -> bool:
    """Whether the call became one of the fused operator, which it does where torch would choose the plain form: that alone gives rows in
    a piece."""
    given = _given(call)
    values = [_value(given.get(name)) for name in PARAMETERS[:3]]
    mask, result = given.get("attn_mask"), _value(call)
    known = all(value is not None for value in [*values, result]) and (mask is None or _value(mask) is not None)
    if not known or result.device.type not in devices or not result.is_floating_point():
        return False
    missing = RANK - result.dim()
    shared = 2 if given.get("enable_gqa") else 1
    batches = [[expression(size) for size in value.shape[: max(result.dim() - 1 - shared, 0)]] for value in [*values, result]]
    alike = all(value.dim() == result.dim() for value in values) and all(batch == batches[-1] for batch in batches)
    if missing < 0 or not alike or not _is_row_major(result):
        return False
    # The operator has one size of a head for all, and keeps some of the weights.
    dropout = given.get("dropout_p", 0.0)
    if len({expression(value.size(-1)) for value in [*values, result]}) != 1 or not isinstance(dropout, (int, float)) or dropout >= 1:
        return False
    with gm.graph.inserting_before(call):
        # Autocast, which knows the call but not the operator, has decided on the dtype of the result.
        operands = [
            _widened(gm, _cast(gm, given[name], value, result.dtype), missing) for name, value in zip(PARAMETERS[:3], values)
        ]
        bias = None if mask is None else _bias(gm, mask, result, missing)
        rest = (True, dropout, given.get("is_causal", False))
        several = gm.graph.call_function(FUSED, (*operands, bias, *rest), {"scale": given.get("scale")})
        shown = gm.graph.call_function(operator.getitem, (several, 0))
        if missing:
            shown = gm.graph.call_function(aten.squeeze.dims, (shown, tuple(range(missing))))
        shown = gm.graph.call_function(aten.contiguous.default, (shown,))
    shown.meta = dict(call.meta)
    call.replace_all_uses_with(shown)
    gm.graph.erase_node(call)
    return True


def _cast(gm: GraphModule, node: Node, value: torch.Tensor, dtype: torch.dtype) -> Node:
    return node if value.dtype == dtype else gm.graph.call_function(aten.to.dtype, (node, dtype))


def _bias(gm: GraphModule, mask: Node, result: torch.Tensor, missing: int) -> Node:
    """What a mask adds to the scores, in four dimensions or fewer: minus infinity where a truth value hides a key."""
    value = _value(mask)
    if value.dtype == torch.bool:
        zero = gm.graph.call_function(torch.zeros, ((),), {"dtype": result.dtype, "device": result.device})
        hidden = gm.graph.call_function(aten.logical_not.default, (mask,))
        mask = gm.graph.call_function(aten.masked_fill.Scalar, (zero, hidden, float("-inf")))
    elif value.dtype != result.dtype:
        mask = gm.graph.call_function(aten.to.dtype, (mask, result.dtype))
    return _widened(gm, mask, missing) if value.dim() > 2 else mask


def _rewritten(gm: GraphModule, call: Node) -> bool:
    """Whether the call was given another form."""
    operands = list(call.args[:3])
    values = [_value(node) for node in operands]
    mask = call.args[3] if len(call.args) > 3 else call.kwargs.get("attn_mask")
    result = _value(call)
    known = len(operands) == 3 and all(value is not None for value in [*values, result])
    if not known or (mask is not None and _value(mask) is None):
        return False
    missing = RANK - result.dim()
    apart = [expression(value.stride(-1)) != 1 for value in values]
    # What follows was captured with the strides that the result has now.
    same_rank = all(value.dim() == result.dim() for value in values)
    if missing < 0 or not same_rank or not (missing or any(apart)) or not _is_row_major(result):
        return False
    with gm.graph.inserting_before(call):
        for n, node in enumerate(operands):
            wide = _widened(gm, node, missing)
            call.update_arg(n, gm.graph.call_function(aten.contiguous.default, (wide,)) if apart[n] else wide)
        # A mask of rows and columns holds for every batch and head as it is.
        if mask is not None and _value(mask).dim() > 2 and missing:
            wide = _widened(gm, mask, missing)
            call.update_arg(3, wide) if len(call.args) > 3 else call.update_kwarg("attn_mask", wide)
    with gm.graph.inserting_after(call):
        shown = gm.graph.call_function(aten.contiguous.default, (call,))
    call.replace_all_uses_with(shown, delete_user_cb=lambda user: user is not shown)
    if missing:
        with gm.graph.inserting_after(shown):
            narrow = gm.graph.call_function(aten.squeeze.dims, (shown, tuple(range(missing))))
        shown.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)
    return True


def _value(node: object) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_row_major(t: torch.Tensor) -> bool:
    """Whether strides are those of row-major memory. Symbolic sizes are compared as expressions, so that no guard is added."""
    expected = 1
    for d in reversed(range(t.dim())):
        if expression(t.size(d)) != 1 and expression(t.stride(d)) != expected:
            return False
        expected = expected * expression(t.size(d))
    return True


def _widened(gm: GraphModule, node: Node, missing: int) -> Node:
    """The tensor with this many dimensions of size 1 before the others."""
    for _ in range(missing):
        node = gm.graph.call_function(aten.unsqueeze.default, (node, 0))
    return node
