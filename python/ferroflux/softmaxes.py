"""Softmax in training, written as the operators that it is made of.

The gradients of ``_softmax`` and ``_log_softmax`` read their results, so that torch's partitioner, to which these are one operator, keeps a
result of float32 for the backward where 16-bit logits stand before it: of a loss over a vocabulary the largest tensor of a step. Written out
it keeps the logits, with the largest one and the sum of each row, and the result is computed again where it is read.

Not here: the cut (``partition``), and softmax of what was never narrower, for which an exponential function would be computed twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

NARROW = (torch.bfloat16, torch.float16)
MOST_STEPS = 8
"""Operators before a softmax that are looked through."""


def write_out(graph: Graph) -> int:
    """Writes out the calls of a joint graph for which it pays, with their gradients, and says how many."""
    done = 0
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in RULES and _pays(node):
            for call in (node, *_gradients(node)):
                with graph.inserting_before(call):
                    result = RULES[call.target](_Writer(graph, call))
                call.replace_all_uses_with(result)
                graph.erase_node(call)
                done += 1
    return done


def _pays(node: Node) -> bool:
    """Whether a call's input was widened, or a difference is all that is computed twice. Sizes along the dimension are numbers, since a
    row of no elements has no largest one."""
    # A checkpoint's policy is about the call as a whole: each part of it would be saved.
    if node.target in GRADIENTS.values() or "recompute" in node.meta:
        return False
    given, dim = node.args[0], node.args[1]
    value = given.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() == 0 or not value.is_floating_point():
        return False
    if not isinstance(value.size(dim), int) or value.size(dim) == 0:
        return False
    widened = node.meta["val"].dtype not in NARROW and _is_widened(given)
    return widened or node.target is aten._log_softmax.default


def _is_widened(node: Node, steps: int = MOST_STEPS) -> bool:
    """Whether a value is of 16 bits, or computed point by point from one of 16 bits that is as large: scores plus a bias."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    if value.dtype in NARROW:
        return True
    if steps == 0 or node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target in CONVERTS:
        return _is_widened(node.args[0], steps - 1)
    given = node.all_input_nodes if torch.Tag.pointwise in node.target.tags else []
    return any(_same_shape(one.meta.get("val"), value) and _is_widened(one, steps - 1) for one in given)


def _same_shape(one: Any, other: torch.Tensor) -> bool:
    known = lambda t: all(isinstance(size, int) for size in t.shape)
    return isinstance(one, torch.Tensor) and known(one) and known(other) and one.shape == other.shape


def _gradients(node: Node) -> list[Node]:
    """The calls that compute a gradient from the result of a call."""
    return [user for user in node.users if user.target is GRADIENTS[node.target] and user.args[1] is node]


class _Writer:
    """Inserts calls in place of one, with the values that torch's partitioner looks at."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        made = self.graph.call_function(target, args, kwargs)
        values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
        with self.node.meta["val"].fake_mode:
            value = target(*values, **kwargs)
        made.meta = {**self.node.meta, "val": value}
        made.meta.pop("tensor_meta", None)
        return made

    def operand(self, n: int) -> Node:
        """An operand in the dtype of arithmetic: 16-bit numbers are computed in float32."""
        given = self.node.args[n]
        return self.converted(given, torch.float32) if given.meta["val"].dtype in NARROW else given

    def converted(self, value: Node, dtype: torch.dtype) -> Node:
        return value if value.meta["val"].dtype == dtype else self.call(aten._to_copy.default, value, dtype=dtype)

    def result(self, value: Node) -> Node:
        return self.converted(value, self.node.meta["val"].dtype)

    def exponents(self) -> tuple[Node, Node]:
        """The input less the largest element of each row, and the sums of its exponentials."""
        given, dims = self.operand(0), [self.node.args[1]]
        moved = self.call(aten.sub.Tensor, given, self.call(aten.amax.default, given, dims, True))
        return moved, self.call(aten.sum.dim_IntList, self.call(aten.exp.default, moved), dims, True)

    def sums(self, value: Node) -> Node:
        return self.call(aten.sum.dim_IntList, value, [self.node.args[2]], True)


def _softmax(w: _Writer) -> Node:
    moved, sums = w.exponents()
    return w.result(w.call(aten.div.Tensor, w.call(aten.exp.default, moved), sums))


def _log_softmax(w: _Writer) -> Node:
    moved, sums = w.exponents()
    return w.result(w.call(aten.sub.Tensor, moved, w.call(aten.log.default, sums)))


def _softmax_gradient(w: _Writer) -> Node:
    product = w.call(aten.mul.Tensor, w.operand(0), w.operand(1))
    return w.result(w.call(aten.sub.Tensor, product, w.call(aten.mul.Tensor, w.operand(1), w.sums(product))))


def _log_softmax_gradient(w: _Writer) -> Node:
    grad = w.operand(0)
    share = w.call(aten.mul.Tensor, w.call(aten.exp.default, w.operand(1)), w.sums(grad))
    return w.result(w.call(aten.sub.Tensor, grad, share))


GRADIENTS = {
    aten._softmax.default: aten._softmax_backward_data.default,
    aten._log_softmax.default: aten._log_softmax_backward_data.default,
}
RULES = {
    aten._softmax.default: _softmax, aten._softmax_backward_data.default: _softmax_gradient,
    aten._log_softmax.default: _log_softmax, aten._log_softmax_backward_data.default: _log_softmax_gradient,
}  # fmt: skip
CONVERTS = {
    aten._to_copy.default, torch.ops.prims.convert_element_type.default, aten.view.default, aten._unsafe_view.default, aten.alias.default,
}  # fmt: skip
"""Operators that keep the elements, but for their dtype."""
