"""Arguments of the host that a graph of a device converts and then moves there, such as a table of positions that a model made at its
start and casts in each call.

The move comes first here, so that the device computes what the host would, and the graph stays one piece: its arguments may lie on
the host.

Not here: tensors that depend on no argument (``host_constants``), and arguments that the host reads for anything else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from .host_constants import home_of, is_function

aten = torch.ops.aten

MOVES = {aten._to_copy.default, torch.ops.prims.device_put.default}
"""Operators that take a tensor to another device."""


def move_first(gm: GraphModule) -> None:
    """Has the device compute what the graph moves to it."""
    home = home_of(gm)
    if home is None:
        return
    for argument in gm.graph.find_nodes(op="placeholder"):
        value = argument.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() > 0:
            computed = _computed(argument, home)
            if computed:
                _recompute(argument, computed, home)


def _computed(argument: Node, home: torch.device) -> list[Node]:
    """What the host computes from an argument alone, in order, where all of it ends in moves to the device; else nothing."""
    found: list[Node] = []
    seen = {argument}
    open_nodes = [argument]
    moved = False
    while open_nodes:
        for user in open_nodes.pop().users:
            if user in seen:
                continue
            value = user.meta.get("val")
            if user.op != "call_function" or not is_function(user.target) or not isinstance(value, torch.Tensor):
                return []
            seen.add(user)
            if value.device == home and user.target in MOVES:
                moved = True
                continue
            found.append(user)
            open_nodes.append(user)
    alone = all(source in seen for node in found for source in node.all_input_nodes)
    on_host = all(node.meta["val"].device.type == "cpu" for node in found)
    if not (moved and alone and on_host):
        return []
    order = {node: n for n, node in enumerate(argument.graph.nodes)}
    return sorted(found, key=order.__getitem__) or [argument]


def _recompute(argument: Node, computed: list[Node], home: torch.device) -> None:
    """Gives the argument and what is computed from it the device."""
    value = argument.meta["val"]
    mode = value.fake_mode
    with mode:
        argument.meta["val"] = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=home)
        for node in computed:
            if node is argument:
                continue
            if node.kwargs.get("device") is not None:
                node.update_kwarg("device", home)
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
            node.meta["val"] = node.target(*args, **kwargs)
