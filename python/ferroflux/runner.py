"""One graph compiled: which of its values the compiled code returns, and the function around it.

Results that are inputs, views of inputs or views of other results are returned as such, so that they share memory as they
do in eager PyTorch, and nothing is copied for them. Sizes that are results are computed from the arguments.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

from . import _native
from .graph import Text
from .options import Options
from .sizes import Refused

LISTENERS: list[Callable[[str, Any], None]] = []
"""Called with the text and the code of every compiled graph: ``explain`` collects them."""


def _seed() -> int:
    """A seed for the random numbers of a call, from torch's generator: ``torch.manual_seed`` repeats it."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def storage(value: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(value.untyped_storage())


def is_dense(t: torch.Tensor) -> bool:
    """Whether the elements lie side by side in some order of the dimensions. Symbolic sizes are compared as expressions, so
    that no guard is added."""
    same = lambda a, b: _expression(a) == _expression(b)
    open_dims = [d for d in range(t.dim()) if not same(t.size(d), 1)]
    expected = 1
    while open_dims:
        found = next((d for d in open_dims if same(t.stride(d), expected)), None)
        if found is None:
            return False
        open_dims.remove(found)
        expected = _expression(expected) * _expression(t.size(found))
    return True


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


class Results:
    """The results of a graph as expressions over arguments (``a``) and what the code returns (``r``)."""

    def __init__(self, gm: GraphModule, text: Text):
        self.text = text
        self.returned: list[Node] = []
        self.kept: dict[int, str] = {}
        self.first: dict[StorageWeakRef, tuple[str, Node]] = {}
        self.makers: dict[StorageWeakRef, Node] = {}
        nodes = list(gm.graph.nodes)
        self.arguments = {n: i for i, n in enumerate(n for n in nodes if n.op == "placeholder")}
        for node in nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and node.op != "output" and value.layout is torch.strided:
                self.makers.setdefault(storage(value), node)
        output = nodes[-1].args[0]
        self.expressions = [self._result(o) for o in (output if isinstance(output, (list, tuple)) else [output])]

    def _result(self, value: Any) -> str:
        if not isinstance(value, Node):
            return repr(value) if value is None or isinstance(value, (bool, int, float)) else self._refuse(value)
        held = value.meta.get("val")
        if isinstance(held, torch.Tensor):
            return self._tensor(value, held)
        if isinstance(held, torch.SymInt):
            return self.text.symbols.text(held)
        if value in self.arguments:
            return self._argument(value)
        if held is None or isinstance(held, (bool, int, float)):
            return repr(held)
        return self._refuse(value)

    def _refuse(self, value: Any) -> str:
        raise Refused(str(value), "output", f"a result of type {type(value).__name__} is not supported")

    def _argument(self, node: Node) -> str:
        self.kept[self.arguments[node]] = name = f"a{self.arguments[node]}"
        return name

    def _tensor(self, node: Node, held: torch.Tensor) -> str:
        if node in self.arguments:
            return self._argument(node)
        if held.layout is not torch.strided:
            return self._refuse(node)
        maker = self.makers[storage(held)]
        base = maker.meta["val"]
        if maker.op == "get_attr" or base.dtype != held.dtype or base.is_conj() != held.is_conj():
            return self._own(node)
        if maker in self.arguments:
            # Its own tensor even where it has the same sizes: who gets it may resize it, or give it a gradient.
            return self._view(self._argument(maker), base, held, relative=True)
        if maker is not node and not (is_dense(base) and _expression(base.storage_offset()) == 0):
            return self._own(node)
        own = self._own(maker)
        return own if maker is node else self._view(own, base, held, relative=False)

    def _own(self, node: Node) -> str:
        """A tensor that the code returns."""
        if node not in self.returned:
            self.returned.append(node)
        return f"r[{self.returned.index(node)}]"

    def _view(self, name: str, base: torch.Tensor, held: torch.Tensor, relative: bool) -> str:
        number = self.text.symbols.text
        sizes = ", ".join(map(number, held.shape))
        strides = ", ".join(map(number, held.stride()))
        offset = number(held.storage_offset() - base.storage_offset())
        if relative:
            offset = f"{name}.storage_offset() + {offset}"
        comma = "," if held.dim() == 1 else ""
        return f"view({name}, ({sizes}{comma}), ({strides}{comma}), {offset})"


def _symbol_lines(text: Text, expressions: list[str]) -> list[str]:
    """Statements that read size symbols from the arguments, where results mention them."""
    used = " ".join(expressions)
    lines = []
    for symbol, name in text.symbols.names.items():
        if not _mentions(used, name):
            continue
        where = None
        for i, node in enumerate(n for n in text.gm.graph.nodes if n.op == "placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and value.node.expr == symbol:
                where = f"args[{i}]"
                break
            for d, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                    where = f"args[{i}].size({d})"
        if where is None:
            raise Refused("", "output", f"no argument gives the size {symbol} of a result")
        lines.append(f"    {name} = {where}")
    return lines


def _mentions(text: str, name: str) -> bool:
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        if (start == 0 or not text[start - 1].isalnum()) and (end == len(text) or not text[end].isalnum()):
            return True
        start = text.find(name, end)
    return False


def _fix_strides(node: Node) -> bool:
    """Whether the code's result has other strides than eager PyTorch's: it returns dense tensors."""
    return not is_dense(node.meta["val"])


def compiled(gm: GraphModule, options: Options, constants: set[str]) -> Callable[[list], list]:
    """Compiles a graph; the result takes a list of arguments, which it empties, and returns a list.

    Raises ``Unsupported`` with the nodes that cannot be compiled.
    """
    text = Text(gm, constants)
    results = Results(gm, text)
    source = text.convert(results.returned)
    device = device_of(gm)
    backend = options.backend_of(device)
    settings = list(options.more)
    if backend == "cpu" and all(name != "threads" for name, _ in settings):
        settings.append(("threads", str(torch.get_num_threads())))
    places = text.places + [f"constant:{n.name}" for n in text.names if n.op == "get_attr"]
    code = _native.Callable(source, places, backend, options.mode_of(backend), settings, _seed, options.cache)
    # The convention of AOTAutograd: the callee empties the list of arguments.
    code._boxed_call = True
    for listener in LISTENERS:
        listener(source, code)
    return _wrapped(gm, text, results, code)


def _wrapped(gm: GraphModule, text: Text, results: Results, code: Any) -> Callable[[list], list]:
    """The code itself where its results are those of the graph, else a function around it."""
    plain = [f"r[{i}]" for i in range(len(results.returned))]
    strange = [i for i, n in enumerate(results.returned) if _fix_strides(n)]
    lazy = [
        i
        for i, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")
        if isinstance(n.meta.get("val"), torch.Tensor) and (n.meta["val"].is_conj() or n.meta["val"].is_neg())
    ]
    if results.expressions == plain and not strange and not lazy and not text.tensors:
        return code
    head = _symbol_lines(text, results.expressions)
    lines = ["def call(args):", *head]
    lines += [f"    {name} = args[{i}]" for i, name in sorted(results.kept.items())]
    lines += [f"    args[{i}] = resolved(args[{i}])" for i in lazy]
    if text.tensors:
        lines.append("    args.extend(constants)")
    lines.append("    r = code(args)")
    number = text.symbols.text
    for i in strange:
        held = results.returned[i].meta["val"]
        shape = ", ".join(map(number, held.shape)) + ","
        strides = ", ".join(map(number, held.stride())) + ","
        lines.append(f"    r[{i}] = restrided(r[{i}], ({shape}), ({strides}))")
    lines.append(f"    return [{', '.join(results.expressions)}]")
    scope = {
        "code": code,
        "view": torch.as_strided,
        "constants": text.tensors,
        "resolved": lambda t: t.resolve_conj().resolve_neg(),
        "restrided": _restrided,
    }
    exec("\n".join(lines), scope)
    call = scope["call"]
    call._boxed_call = True
    call.code = code
    return call


def _restrided(t: torch.Tensor, sizes: tuple, strides: tuple) -> torch.Tensor:
    """The same elements in eager PyTorch's strides, which may repeat elements or leave gaps."""
    new = torch.empty_strided(sizes, strides, dtype=t.dtype, device=t.device)
    if 0 in strides:
        index = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
        new[index] = t[index]
        return new
    return new.copy_(t)


def device_of(gm: GraphModule) -> str:
    """The device type of a graph's tensors. Raises ``Refused`` where there are several."""
    found: dict[str, Node] = {}
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for t in value if isinstance(value, (list, tuple)) else (value,):
            # Numbers of the host may stand among tensors of a device.
            if isinstance(t, torch.Tensor) and (t.device.type != "cpu" or t.dim() > 0):
                found.setdefault(t.device.type, node)
    kinds = [k for k in found if k != "cpu"] or ["cpu"]
    if len(found) > 1:
        node = found["cpu"] if "cpu" in found else next(iter(found.values()))
        raise Refused(node.name, str(node.target), f"the graph has tensors on {' and '.join(found)}")
    return kinds[0]
