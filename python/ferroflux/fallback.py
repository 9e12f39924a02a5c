"""What is not supported is run by torch: a graph is split into parts that are compiled and the rest.

Copies into inputs come last of all, whatever part they belong to, so that no part reads a value that another one has
already overwritten. Every operator that torch runs is named in one warning.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.fx import GraphModule, Node

from . import _native, groups, host_constants, host_inputs, runner, segments
from .graph import mutated_inputs
from .options import Options
from .plain import FallbackWarning

log = logging.getLogger("ferroflux")

_warned: set[str] = set()


@dataclass
class Compiled:
    """A graph as a boxed function."""

    call: Callable[[list], list]
    recipe: runner.Recipe | None = None
    """What makes it in a later process; ``None`` where it is made for this one."""
    is_whole: bool = True
    """Whether torch runs no part of it."""


def compiled(gm: GraphModule, options: Options, constants: set[str]) -> Compiled:
    """The graph compiled, what is supported of it.

    Raises ``Unsupported`` with all nodes that are not supported, where ``fallback`` is ``error``.
    """
    host_constants.fold(gm)
    host_inputs.move_first(gm)
    try:
        if ordered := segments.ordered(gm, options, whole=True):
            raise _native.Unsupported(ordered[0][2], ordered)
        found = groups.of(gm)
        recipe = runner.recipe(gm, options, constants)
        if found:
            # Communicators are this process's.
            return Compiled(groups.Exchanging(found, recipe.function))
        return Compiled(recipe.function(), recipe)
    except _native.Unsupported as e:
        refused = e.args[1]
        if options.fallback == "error":
            raise
    except _native.Error as e:
        if options.fallback == "error":
            raise
        log.warning("a graph is run by torch: %s", e)
        refused = segments.ordered(gm, options)
    return Compiled(split(gm, options, refused, constants), is_whole=False)


def split(gm: GraphModule, options: Options, refused: list[tuple[str, str, str]], constants: set[str]) -> Callable[[list], list]:
    """Compiles what is supported of a graph and lets torch run the rest."""
    # What other devices compute is no less supported.
    reasons = {name: (target, why) for name, target, why in refused if why != runner.OTHER_DEVICE}
    constants = constants - {node.name for node in mutated_inputs(gm)}
    gm, copies = without_copies(gm)
    # What is refused for other reasons than its operators cannot be split off.
    names = {name for name, _, _ in refused}
    named = any(node.name in names for node in gm.graph.nodes if node.op == "call_function")
    parts = partitioned(gm, set(reasons), options) if named else gm
    note(parts, reasons)
    for name, module in list(parts.named_children()):
        if name.startswith(PARTS):
            setattr(parts, name, Part(part_of(module, options, constants), module))
    parts.recompile()

    def call(args: list) -> list:
        given = list(args)
        args.clear()
        results = parts(*given)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        kept = len(results) - len(copies)
        for at, value in zip(copies, results[kept:]):
            given[at].copy_(value)
        return results[:kept]

    call._boxed_call = True
    return call


def partitioned(gm: GraphModule, bad: set[str], options: Options) -> GraphModule:
    """The graph with what is supported in modules of its own, each on one device; as it is where it cannot be split."""
    if segments.ordered(gm, options):
        return segments.segmented(gm, lambda node: node.name not in bad and supported(node))
    devices = {node: runner.devices_used(node) for node in gm.graph.nodes}
    # The host computes a little for another device, which is not worth a part.
    apart = sorted(set().union(*devices.values()) - {"cpu"}) or ["cpu"]
    try:
        for number, device in enumerate(apart):
            on_it = {node.name for node, used in devices.items() if used <= {device}}
            gm = fused(gm, on_it - bad, f"part_{number}")
        return gm
    except (AssertionError, RuntimeError) as e:
        log.warning("a graph cannot be split and is run by torch: %s", e)
        return gm


def fused(gm: GraphModule, wanted: set[str], prefix: str) -> GraphModule:
    """The graph with the supported ones of these nodes in modules ``PREFIX_N``."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Node) -> bool:
            return node.name in wanted and supported(node)

    gm = CapabilityBasedPartitioner(gm, Support(), allows_single_node_partition=False).partition_and_fuse()
    for node in gm.graph.find_nodes(op="call_module"):
        if str(node.target).startswith("fused_"):
            name = str(node.target).replace("fused", prefix, 1)
            gm.add_module(name, gm.get_submodule(node.target))
            gm.delete_submodule(node.target)
            node.target = name
    gm.recompile()
    return gm


PARTS = ("part_", segments.PART)
"""What the names of modules begin with that are compiled."""


class Part(torch.nn.Module):
    """A compiled part in the place of its graph."""

    def __init__(self, call: Callable[[list], list] | None, module: GraphModule):
        super().__init__()
        output = next(iter(reversed(module.graph.nodes))).args[0]
        self.single = isinstance(output, Node)
        self.call = call

    def forward(self, *args: Any) -> Any:
        results = self.call(list(args))
        return results[0] if self.single else tuple(results)


def part_of(module: GraphModule, options: Options, constants: set[str]) -> Callable[[list], list]:
    """A part compiled, or split again where the compiler refuses more of it. Its arguments have the names of the nodes that give them."""
    refused: list = []
    try:
        return runner.recipe(module, options, constants).function()
    except _native.Unsupported as e:
        refused = e.args[1]
    except _native.Error as e:
        log.warning("a part of a graph is run by torch: %s", e)
    return split(module, options, refused, constants)


def supported(node: Node) -> bool:
    """Whether the operator table has a node's operator."""
    import operator

    if node.op != "call_function" or groups.is_exchange(node):
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, Node) and supported(source)
    value = node.meta.get("val")
    if not isinstance(node.target, torch._ops.OpOverload):
        return isinstance(value, (int, torch.SymInt))
    name = str(node.target)
    return name in PRIMS or _native.known([name])[0]


PRIMS = {"prims.convert_element_type.default", "prims.iota.default", "prims.view_of.default", "prims.device_put.default"}


def note(gm: GraphModule, reasons: dict[str, tuple[str, str]]) -> None:
    """One warning that names every operator that torch runs."""
    import operator

    names = set()
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            if isinstance(node.meta.get("val"), (int, torch.SymInt, torch.SymBool, torch.SymFloat)):
                continue
            # Views between what torch runs are not compiled by themselves, and nothing is amiss with them.
            if getattr(node.target, "is_view", False) and node.name not in reasons:
                continue
            names.add(str(node.target))
    new = sorted(n for n in names if n not in _warned)
    if new:
        _warned.update(new)
        why = {target: text for target, text in reasons.values()}
        lines = [f"  {n}" + (f": {why[n]}" if n in why else "") for n in new]
        warnings.warn("ferroflux: torch runs what is not supported:\n" + "\n".join(lines), FallbackWarning, stacklevel=2)


def without_copies(gm: GraphModule) -> tuple[GraphModule, list[int]]:
    """The graph with the new values of its mutated inputs as last results, and these inputs' numbers."""
    placeholders = {n: i for i, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
    graph = torch.fx.Graph()
    mapping: dict[Node, Node] = {}
    values: list[tuple[int, Node]] = []
    for node in gm.graph.nodes:
        is_copy = node.target is torch.ops.aten.copy_.default and node.args[0] in placeholders
        if is_copy:
            target, value = node.args[:2]
            values.append((placeholders[target], mapping[value]))
            # Who reads the copy reads its input, as in eager PyTorch.
            mapping[node] = mapping[target]
        elif node.op == "output":
            results = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
            results = [mapping[r] if isinstance(r, Node) else r for r in results]
            graph.output((*results, *(v for _, v in values))).meta = dict(node.meta)
        else:
            mapping[node] = graph.node_copy(node, lambda n: mapping[n])
    return GraphModule(gm, graph), [at for at, _ in values]
