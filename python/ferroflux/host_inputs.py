"""Arguments of the host that a graph of a device converts and then moves there, such as a table of positions that a model made at its
start and casts in each call.

The move comes first here, so that the device computes what the host would, and the graph stays one piece: its arguments may lie on
the host where they are only moved (`is_move`).

Not here: tensors that depend on no argument (``host_constants``), arguments that the host reads for anything else, and those of which
less is moved than there is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .host_constants import home_of, is_function

aten = torch.ops.aten

MOVE = aten._to_copy.default
"""The operator that takes a tensor to another device."""


def is_move(node: Node) -> bool:
    """Whether a node takes a tensor of the host to a device."""
    source = node.args[0] if node.args else None
    devices = [_device(node), _device(source)]
    return node.op == "call_function" and node.target is MOVE and devices[0] not in (None, "cpu") and devices[1] == "cpu"


def is_only_moved(node: Node) -> bool:
    """Whether a node is an argument of the host that is moved, and read by nothing else."""
    return node.op == "placeholder" and _device(node) == "cpu" and len(node.users) > 0 and all(map(is_move, node.users))


def _device(node: Any) -> str | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.device.type if isinstance(value, torch.Tensor) else None


def move_first(gm: GraphModule) -> None:
    """Has the device compute what the graph moves to it."""
    home = home_of(gm)
    if home is None:
        return
    for argument in gm.graph.find_nodes(op="placeholder"):
        value = argument.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() > 0:
            if computed := _computed(argument, home):
                _recompute(gm, argument, computed, home)


def _computed(argument: Node, home: torch.device) -> list[Node]:
    """What the host computes from an argument alone, in order, where all of it ends in moves to the device; else nothing."""
    found: list[Node] = []
    seen = {argument}
    open_nodes = [argument]
    moved = 0
    while open_nodes:
        for user in open_nodes.pop().users:
            if user in seen:
                continue
            value = user.meta.get("val")
            if user.op != "call_function" or not is_function(user.target) or not isinstance(value, torch.Tensor):
                return []
            seen.add(user)
            if is_move(user):
                moved += _elements(user)
                continue
            found.append(user)
            open_nodes.append(user)
    alone = all(source in seen for node in found for source in node.all_input_nodes)
    on_host = all(node.meta["val"].device.type == "cpu" for node in found)
    if not (alone and on_host and moved >= _elements(argument)):
        return []
    order = {node: n for n, node in enumerate(argument.graph.nodes)}
    return sorted(found, key=order.__getitem__)


def _elements(node: Node) -> int:
    """The number of elements; of a symbolic size by its hint."""
    sizes = [size if isinstance(size, int) else size.node.hint for size in node.meta["val"].shape]
    return math.prod(size if isinstance(size, int) else 1 for size in sizes)


def _recompute(gm: GraphModule, argument: Node, computed: list[Node], home: torch.device) -> None:
    """Moves the argument first, where the device has what is computed of it."""
    value = argument.meta["val"]
    there: dict[Node, tuple[dict, torch.Tensor]] = {}
    try:
        with value.fake_mode:
            first = MOVE(value, device=home)
            for node in computed:
                kwargs = {k: home if k == "device" and v is not None else v for k, v in node.kwargs.items()}
                known = lambda source: first if source is argument else there[source][1]
                args, given = torch.fx.map_arg((node.args, kwargs), known)
                result = node.target(*args, **given)
                if result.device != home:
                    return
                there[node] = (kwargs, result)
    except (RuntimeError, NotImplementedError):
        return
    with gm.graph.inserting_after(list(gm.graph.find_nodes(op="placeholder"))[-1]):
        moved = gm.graph.call_function(MOVE, (argument,), {"device": home})
    moved.meta["val"] = first
    argument.replace_all_uses_with(moved, delete_user_cb=lambda user: user is not moved)
    for node, (kwargs, result) in there.items():
        node.kwargs = kwargs
        node.meta["val"] = result
    gm.recompile()
