"""Which values a forward graph keeps for its backward graph.

torch's partitioner decides by a minimum cut. It never computes operands of matrix products and attention again, so that it would
keep masks, which are as large as the scores, though a few comparisons of positions give them: the compiler computes such an
expression within the kernel of attention, and skips what it hides. Here masks are marked to be computed again. The words that say which
of attention's weights are kept are marked to be saved, even where everything around them is computed again: they are small, and drawing
again gives others.

Not here: the cut itself, and what the compiler computes again within a graph.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from . import operators, softmaxes

aten = torch.ops.aten

FACTOR = 8
"""A value of integers or truth values is computed again where it has this many times the bytes of what it is computed from."""
FACTOR_OF_FLOATS = 2
"""The same of floats: masks that are added, which kernels of attention read as truth values where they are computed from these."""
CHEAP = {
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.full.default, aten.full_like.default, aten.ones.default,
    aten.zeros.default, aten.scalar_tensor.default, aten.new_ones.default, aten.new_zeros.default, aten.new_full.default,
    aten.index.Tensor, aten.tril.default, aten.triu.default, aten._to_copy.default, aten.where.self, aten.cat.default,
}  # fmt: skip
"""Operators beside the pointwise ones and views that take a few instructions for each element."""


def partition(joint: GraphModule, inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    """torch's minimum cut, with softmax written out, masks computed again and words of kept weights saved."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    drop_detached(joint.graph)
    softmaxes.write_out(joint.graph)
    mark(joint.graph)
    save_words(joint.graph)
    return min_cut_rematerialization_partition(joint, inputs, **keywords)


def drop_detached(graph: Graph) -> None:
    """Takes away the calls of `detach`, which say nothing behind autograd: torch's partitioner takes them for operators that nothing is
    fused with, and would keep what they read."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is aten.detach.default and all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def mark(graph: Graph) -> list[Node]:
    """Marks what is computed from positions, truth values and other integers alone, and is far larger than they are."""
    from torch.utils.checkpoint import CheckpointPolicy

    sources: dict[Node, frozenset[Node] | None] = {}
    written = {n.args[0] for n in graph.nodes if n.op == "call_function" and n.target is aten.copy_.default}
    views = set(written)
    marked = []
    for node in graph.nodes:
        # The backward would find another value in an input that is written, and in its views: what reads these is saved.
        if node in written or any(read in written for read in node.all_input_nodes):
            if node.op == "call_function" and node not in views and any(read in views for read in node.all_input_nodes):
                if _is_view(node.target):
                    views.add(node)
                else:
                    node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
            written.add(node)
            sources[node] = None
            continue
        sources[node] = _sources(node, sources)
        given = sources[node]
        # What another operator gives is its own source; sizes are kept as numbers.
        is_own = given is None or node in given or not isinstance(node.meta.get("val"), torch.Tensor)
        if is_own or node.op != "call_function" or "recompute" in node.meta:
            continue
        factor = FACTOR_OF_FLOATS if node.meta["val"].is_floating_point() else FACTOR
        if _bytes(node) >= factor * sum(map(_bytes, given)):
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            marked.append(node)
    return marked


def save_words(graph: Graph) -> None:
    """Marks what `ferroflux::kept_weights` draws to be saved."""
    from torch.utils.checkpoint import CheckpointPolicy

    for node in graph.nodes:
        if node.op == "call_function" and operators.is_drawn(node.target):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _sources(node: Node, known: dict[Node, frozenset[Node] | None]) -> frozenset[Node] | None:
    """The tensors of integers and truth values that a node is computed from by cheap operators, none where sizes and numbers alone decide
    it; ``None`` where there are others."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return frozenset() if isinstance(value, (int, torch.SymInt)) else None
    whole = not value.is_floating_point() and not value.is_complex()
    if node.op == "call_function" and _is_repeatable(node.target):
        given = [known[read] for read in node.all_input_nodes]
        # Integers that sizes alone decide, such as counts of documents, are few.
        counted = whole and not any(given)
        if all(one is not None for one in given) and (_is_cheap(node.target) or counted):
            return frozenset().union(*given)
    return frozenset([node]) if whole else None


def _is_repeatable(target: Any) -> bool:
    """Whether an operator gives the same results again."""
    is_aten = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return is_aten and not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _is_view(target: Any) -> bool:
    is_operator = isinstance(target, torch._ops.OpOverload)
    return is_operator and any(one.alias_info is not None for one in target._schema.returns)


def _is_cheap(target: torch._ops.OpOverload) -> bool:
    return _is_view(target) or target in CHEAP or torch.Tag.pointwise in target.tags


def _bytes(node: Node) -> int:
    """The bytes of a tensor; those of a symbolic size by its hint, which decides about time and memory alone."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return 0
    sizes = [size if isinstance(size, int) else _hint(size) for size in value.shape]
    return math.prod(sizes) * value.dtype.itemsize


def _hint(size: torch.SymInt) -> int:
    hint = size.node.hint
    return hint if isinstance(hint, int) else 1
