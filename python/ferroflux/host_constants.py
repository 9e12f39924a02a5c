"""What a graph of a device computes on the host from nothing but constants: tables of positions, grids of coordinates, numbers.

Eager PyTorch lets tensors of a device be indexed by tensors of the host, so models often make such tables without naming a device. Each
call would compute them by torch and copy them. Here they are computed once, when the graph is compiled, and lie on the device.

Not here: what depends on arguments of the host, on sizes that are not numbers, or on random numbers; results of the graph that
belong to the host; and tensors without dimensions, which are numbers of the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

LARGEST = 1 << 24
"""The most elements of a tensor that is kept instead of being computed in each call."""
PREFIX = "_host_constant_"


def fold(gm: GraphModule) -> None:
    """Replaces such values where tensors of the device are computed from them."""
    home = home_of(gm)
    if home is None:
        return
    known: dict[Node, torch.Tensor] = {}
    for node in gm.graph.nodes:
        value = _value(gm, node, known)
        if value is not None:
            known[node] = value
    made = [_replace(gm, node, value, home, known) for node, value in known.items() if node.op == "call_function"]
    if any(made):
        gm.graph.eliminate_dead_code()
        gm.recompile()


def home_of(gm: GraphModule) -> torch.device | None:
    """The device of a graph whose tensors do not all lie on the host."""
    for node in gm.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                return value.device
    return None


def _value(gm: GraphModule, node: Node, known: dict[Node, torch.Tensor]) -> torch.Tensor | None:
    """The tensor of the host that a node always has; ``None`` where it may differ from call to call."""
    if node.op == "get_attr":
        value: Any = gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return value if isinstance(value, torch.Tensor) and value.device.type == "cpu" else None
    fake = node.meta.get("val")
    if node.op != "call_function" or not isinstance(fake, torch.Tensor) or fake.device.type != "cpu":
        return None
    if not is_function(node.target) or not all(_is_number(size) for size in fake.shape) or fake.numel() > LARGEST:
        return None
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    if any(isinstance(leaf, Node) and leaf not in known for leaf in leaves):
        return None
    args, kwargs = pytree.tree_map(lambda leaf: known[leaf] if isinstance(leaf, Node) else leaf, (node.args, node.kwargs))
    with unset_fake_temporarily(), torch.no_grad():
        return node.target(*args, **kwargs)


def is_function(target: Any) -> bool:
    """Whether an operator has the same result for the same operands, and writes none of them."""
    return (
        isinstance(target, torch._ops.OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and target.namespace in ("aten", "prims")
        and "empty" not in target._opname
    )


def _is_number(size: Any) -> bool:
    return isinstance(size, int)


def _replace(gm: GraphModule, node: Node, value: torch.Tensor, home: torch.device, known: dict[Node, torch.Tensor]) -> bool:
    """Whether nodes of the device read the value, from now on there."""
    if value.dim() == 0:
        return False
    readers = [user for user in node.users if user not in known and user.op == "call_function" and _is_of(user, home)]
    if not readers:
        return False
    name = next(f"{PREFIX}{n}" for n in range(len(gm.graph.nodes) + 1) if not hasattr(gm, f"{PREFIX}{n}"))
    with unset_fake_temporarily(), torch.no_grad():
        there = _moved(value, home)
    gm.register_buffer(name, there, persistent=False)
    with gm.graph.inserting_before(node):
        constant = gm.graph.get_attr(name)
    mode = getattr(node.meta["val"], "fake_mode", None)
    constant.meta["val"] = there if mode is None else mode.from_tensor(there)
    for reader in readers:
        reader.replace_input_with(node, constant)
    return True


def _is_of(node: Node, home: torch.device) -> bool:
    """Whether all that a node computes are tensors of the device."""
    values = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
    return bool(values) and all(value.device == home for value in values)


def _moved(value: torch.Tensor, home: torch.device) -> torch.Tensor:
    return value.contiguous().to(home)
