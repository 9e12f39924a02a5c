"""Graphs with operators that torch has to run in the order of the program, split at these.

Exchanges with other processes that compiled code does not make (``groups``) are run by torch on its process groups. Processes wait for each other there, so every process
has to start its exchanges in the order of the captured program, whatever its other operators are. Random numbers of torch's
own generator, where they are wanted, are drawn in that order too. Such a graph is therefore cut into segments in its own
order, and only a wait is moved: to the first reader of what it waits for, so that the exchange runs meanwhile.
Not here: what is compiled of a segment (``fallback``).
"""

from __future__ import annotations

import operator
from typing import Any, Callable

import torch
from torch.fx import Graph, GraphModule, Node

from . import groups
from .options import Options

EXCHANGED = "exchanges are torch's, on its process groups"
DRAWN = "random numbers of torch's generator are wanted"

WAITS = {groups.WAIT, "c10d_functional.wait_tensor.default"}


PART = "segment_"
"""What the names of segments begin with."""


def ordered(gm: GraphModule, options: Options, whole: bool = False) -> list[tuple[str, str, str]]:
    """The nodes that torch runs in the order of the program, as nodes that are refused: name, operator and reason. Of a graph that is
    compiled as a ``whole`` compiled code makes the exchanges, where it can make all of them."""
    taken = whole and groups.of(gm) is not None
    found = [(node.name, str(node.target), EXCHANGED) for node in groups.holders_of(gm)]
    for node in gm.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            if groups.is_exchange(node):
                if not taken:
                    found.append((node.name, str(node.target), EXCHANGED))
            elif options.random == "torch" and torch.Tag.nondeterministic_seeded in node.target.tags:
                found.append((node.name, str(node.target), DRAWN))
    return found


def in_order(gm: GraphModule) -> list[Node]:
    """The nodes with each wait directly before the first reader of its result, and each element of a result directly behind
    its operator; all others in the order that they have."""
    waits: set[Node] = set()
    found: dict[Node, None] = {}

    def add(node: Node) -> None:
        for source in node.all_input_nodes:
            if source in waits:
                waits.discard(source)
                add(source)
        found[node] = None
        for user in node.users:
            if user.target is operator.getitem:
                add(user)

    for node in gm.graph.nodes:
        # A wait that nobody reads has to be done nonetheless: it stays where it is.
        if node.op == "call_function" and str(node.target) in WAITS and node.users:
            waits.add(node)
        elif node not in found:
            add(node)
    return list(found)


def segmented(gm: GraphModule, is_supported: Callable[[Node], bool]) -> GraphModule:
    """The graph with each run of supported nodes as a module ``segment_N``, between the nodes that torch runs."""
    new, mapping, modules = Graph(), {}, {}
    nodes = in_order(gm)
    place = {node: n for n, node in enumerate(nodes)}
    at = 0
    while at < len(nodes):
        end = at
        while end < len(nodes) and is_supported(_operator(nodes[end])):
            end += 1
        run = nodes[at:end]
        results = [n for n in run if any(place[user] >= end for user in n.users)]
        if results and any(map(_has_work, run)):
            name, given = f"{PART}{len(modules)}", _given(run)
            modules[name] = _module(gm, run, given, results)
            call = new.call_module(name, tuple(mapping[n] for n in given))
            _take(new, call, results, mapping)
        else:
            for node in run:
                mapping[node] = new.node_copy(node, mapping.__getitem__)
        for node in nodes[end : end + 1]:
            mapping[node] = new.node_copy(node, mapping.__getitem__)
        at = end + 1
    return GraphModule(attributes(gm, new, modules), new)


def _operator(node: Node) -> Node:
    """The node whose result a node is, or is an element of."""
    while node.target is operator.getitem:
        node = node.args[0]
    return node


def _has_work(node: Node) -> bool:
    """Whether a node computes: views and integers are left to torch where nothing is compiled with them."""
    return isinstance(node.target, torch._ops.OpOverload) and not node.target.is_view


def _given(run: list[Node]) -> list[Node]:
    """What the nodes of a run read of others, each once."""
    own = set(run)
    return list(dict.fromkeys(s for node in run for s in node.all_input_nodes if s not in own))


def _module(gm: GraphModule, run: list[Node], given: list[Node], results: list[Node]) -> GraphModule:
    graph, inner = Graph(), {}
    for node in given:
        inner[node] = graph.placeholder(node.name)
        inner[node].meta = dict(node.meta)
    for node in run:
        inner[node] = graph.node_copy(node, inner.__getitem__)
    graph.output(tuple(inner[n] for n in results))
    return GraphModule(gm, graph)


def _take(new: Graph, call: Node, results: list[Node], mapping: dict[Node, Node]) -> None:
    for n, node in enumerate(results):
        mapping[node] = new.call_function(operator.getitem, (call, n))
        mapping[node].meta = dict(node.meta)


def attributes(gm: GraphModule, graph: Graph, modules: dict[str, GraphModule]) -> dict[str, Any]:
    """What the nodes of a graph made of another one's name: these modules, and attributes of that one."""
    found: dict[str, Any] = dict(modules)
    for node in graph.find_nodes(op="get_attr"):
        value: Any = gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        found[str(node.target)] = value
    return found
