"""The memory layout of what a forward graph keeps for its backward graph: on devices results of convolutions, and what is computed from
them point by point, have their channels innermost, as kernels read them. What the user sees keeps eager PyTorch's strides.

AOTAutograd lets a compiler of forward graphs choose: it states the strides through the tracing context, and gets them with the example
inputs of the backward graph.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .runner import storage

DEVICES = {"cuda"}
"""Types of devices whose kernels gain by it."""
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
BY_STRIDES = {torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default}
"""Operators whose results depend on how their operands lie in memory."""


def keep_channels_last(gm: GraphModule) -> list[tuple[int, ...] | None]:
    """Gives kept values of a forward graph channels-last strides; returns the strides of every result that has new ones, or an empty list."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fw_metadata is None or context.output_strides is None:
        return []
    if any(node.target in BY_STRIDES for node in gm.graph.nodes):
        return []
    results = list(gm.graph.output_node().args[0])
    kept = range(*context.fw_metadata.tensors_saved_for_backwards_slice.indices(len(results)))
    shared = _storages(node for node in gm.graph.nodes if node.op == "placeholder")
    chosen = set()
    for node in _behind_convolutions(gm):
        numbers = [i for i, result in enumerate(results) if result is node]
        others = _storages(r for r in results if isinstance(r, Node) and r is not node)
        alone = storage(node.meta["val"]) not in shared | others
        if numbers and all(i in kept for i in numbers) and alone and _is_row_major(node.meta["val"]):
            chosen.add(node)
    for node in chosen:
        _lay_out(node)
    return [r.meta["val"].stride() if r in chosen else None for r in results] if chosen else []


def tell(strides: list[tuple[int, ...] | None]) -> None:
    """States the strides of a forward graph's results to AOTAutograd."""
    if strides:
        torch._guards.TracingContext.get().output_strides.extend(strides)


def follow(gm: GraphModule, example_inputs: list) -> None:
    """Gives inputs of a backward graph the strides that its examples have."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    for node, example in zip(placeholders, example_inputs):
        held = node.meta.get("val")
        if not (isinstance(held, torch.Tensor) and isinstance(example, torch.Tensor)) or held.dim() not in FORMATS:
            continue
        if _is_fixed(held) and _is_fixed(example) and held.stride() != example.stride():
            node.meta["val"] = held.new_empty_strided(held.shape, example.stride())


def _behind_convolutions(gm: GraphModule) -> list[Node]:
    """Convolutions on such a device and what has as many dimensions and is computed from them."""
    found: dict[Node, None] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        begins = node.target is torch.ops.aten.convolution.default
        if begins or any(source in found for source in node.all_input_nodes):
            values = node.meta.get("val")
            values = values if isinstance(values, (list, tuple)) else [values]
            tensors = [v for v in values if isinstance(v, torch.Tensor)]
            if any(v.dim() in FORMATS and v.device.type in DEVICES for v in tensors):
                found[node] = None
    return [node for node in found if isinstance(node.meta["val"], torch.Tensor) and node.meta["val"].dim() in FORMATS]


def _storages(nodes: Any) -> set:
    held = (node.meta.get("val") for node in nodes)
    return {storage(t) for t in held if isinstance(t, torch.Tensor) and t.layout is torch.strided}


def _is_fixed(t: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*t.shape, *t.stride()))


def _is_row_major(t: torch.Tensor) -> bool:
    return _is_fixed(t) and t.is_contiguous() and t.size(1) > 1 and t[0, 0].numel() > 1 and t.storage_offset() == 0


def _lay_out(node: Node) -> None:
    held = node.meta["val"]
    node.meta["val"] = new = torch.empty_like(held, memory_format=FORMATS[held.dim()])
    if node.target is operator.getitem:
        source, place = node.args
        values = list(source.meta["val"])
        values[place] = new
        source.meta["val"] = type(source.meta["val"])(values)
