"""One graph: which of its values the compiled code returns, and the function around it.

Results that are inputs, views of inputs or views of other results are returned as such, so that they share memory as they
do in eager PyTorch, and nothing is copied for them. Sizes that are results are computed from the arguments.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

from . import _native, host_inputs, precision, recurrent
from .graph import Text
from .groups import Group
from .options import Options, without_number
from .plain import Plain
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
    same = lambda a, b: expression(a) == expression(b)
    open_dims = [d for d in range(t.dim()) if not same(t.size(d), 1)]
    expected = 1
    while open_dims:
        found = next((d for d in open_dims if same(t.stride(d), expected)), None)
        if found is None:
            return False
        open_dims.remove(found)
        expected = expression(expected) * expression(t.size(found))
    return True


MOST_SPREAD = 8
"""How many times the memory of its elements a tensor with gaps may span."""


def is_apart(t: torch.Tensor) -> bool:
    """Whether sizes and strides are numbers by which no two elements share a place, with gaps that are not larger by far, as compiled code
    reads inputs (`TensorMeta::is_apart`)."""
    if not all(isinstance(n, int) for n in (*t.shape, *t.stride())) or t.numel() == 0:
        return False
    span = 1
    for stride, size in sorted((stride, size) for size, stride in zip(t.shape, t.stride()) if size > 1):
        if stride < span:
            return False
        span += stride * (size - 1)
    return span // MOST_SPREAD <= t.numel()


def expression(size: Any) -> Any:
    """A size or stride that can be compared without a guard."""
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
        self.before: list[str] = []
        """Statements before the call: sizes that arguments give."""
        self.after: list[str] = []
        """Statements after it: sizes that only its results give."""
        self.strange = {i: self._eager_strides(n) for i, n in enumerate(self.returned) if not is_dense(n.meta["val"])}
        """Sizes and strides, as code, of results that eager PyTorch stores with gaps or repetitions; the code's are dense."""
        self._find_sizes(nodes)

    def _eager_strides(self, node: Node) -> str:
        held, number = node.meta["val"], self.text.symbols.text
        tuple_of = lambda numbers: "(" + "".join(f"{number(n)}, " for n in numbers) + ")"
        return f"{tuple_of(held.shape)}, {tuple_of(held.stride())}"

    def _find_sizes(self, nodes: list[Node]) -> None:
        """Where the symbols that results mention have their values."""
        used = " ".join([*self.expressions, *self.strange.values()])
        for symbol, name in list(self.text.symbols.names.items()):
            if not _mentions(used, name):
                continue
            if (place := self._size_of_argument(symbol)) is not None:
                self.before.append(f"{name} = {place}")
            elif (place := self._size_of_result(symbol, nodes)) is not None:
                self.after.append(f"{name} = {place}")
            else:
                raise Refused("output", "output", f"nothing gives the size {symbol} of a result")

    def _size_of_argument(self, symbol: Any) -> str | None:
        for node, i in self.arguments.items():
            value = node.meta.get("val")
            if expression(value) == symbol:
                return f"args[{i}]"
            for d, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if expression(size) == symbol:
                    return f"args[{i}].size({d})"
        return None

    def _size_of_result(self, symbol: Any, nodes: list[Node]) -> str | None:
        for i, node in enumerate(self.returned):
            for d, size in enumerate(node.meta["val"].shape):
                if expression(size) == symbol:
                    return f"r[{i}].size({d})"
        for node in nodes:
            if node.target is torch.ops.aten._local_scalar_dense.default and expression(node.meta.get("val")) == symbol:
                return f"int({self._own(node.args[0])}.item())"
        return None

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
        if maker is not node and not (is_dense(base) and expression(base.storage_offset()) == 0):
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


def _mentions(text: str, name: str) -> bool:
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        if (start == 0 or not text[start - 1].isalnum()) and (end == len(text) or not text[end].isalnum()):
            return True
        start = text.find(name, end)
    return False


@dataclass
class Recipe:
    """All that makes a graph's function: plain data, which caches keep for later processes."""

    source: str
    """The graph as fx text."""
    places: list[str]
    """What is done with each argument."""
    backend: str
    mode: str
    settings: list[tuple[str, str]]
    cache: bool
    follows_flags: bool
    """Whether torch's flags for tf32 are an option besides the settings."""
    body: str | None
    """Python code of the function around the call; ``None`` where there is nothing to do around it."""
    constants: list[torch.Tensor]
    plain: Plain | None = None
    """The graph as torch runs it where the code refuses a call; ``None`` where that is an error."""

    def function(self, groups: Sequence[Group] = ()) -> Callable[[list], list]:
        """Compiles the graph, whose exchanges are on these groups; the result takes a list of arguments, which it empties, and returns a
        list.

        Raises ``Unsupported`` with the nodes that cannot be compiled.
        """
        plain = self.plain
        if plain is not None and groups:
            # A call that failed may have exchanged: it is not made again.
            plain = replace(plain, mutates=True)
        otherwise = None if plain is None else plain.otherwise(self.constants)
        if not self.follows_flags:
            return self._compiled(self.settings, otherwise, groups)
        return precision.following(lambda tf32: self._compiled([*self.settings, (precision.OPTION, tf32)], otherwise, groups))

    def _compiled(self, settings: list, otherwise: Callable | None, groups: Sequence[Group]) -> Callable[[list], list]:
        ranks = [(g.name, g.native, g.backend.rank(), g.backend.size()) for g in groups]
        code = _native.Callable(self.source, self.places, self.backend, self.mode, settings, _seed, self.cache, ranks)
        # The convention of AOTAutograd: the callee empties the list of arguments.
        code._boxed_call = True
        for listener in LISTENERS:
            listener(self.source, code)
        if self.body is None:
            if otherwise is not None:
                code.otherwise = otherwise
            return code
        scope = {
            "code": code,
            "view": torch.as_strided,
            "as_complex": torch.view_as_complex,
            "constants": self.constants,
            "resolved": lambda t: t.resolve_conj().resolve_neg(),
            "restrided": _restrided,
            "pageable": _pageable,
            "otherwise": otherwise or _raised,
            "Error": _native.Error,
        }
        exec(self.body, scope)
        scope["call"]._boxed_call = True
        return scope["call"]


def _raised(args: list, error: Exception) -> list:
    raise error


def recipe(gm: GraphModule, options: Options, constants: set[str]) -> Recipe:
    """The recipe of a graph, whose placeholders of these names are bound where they can be.

    Raises ``Refused`` for the first node that cannot be expressed.
    """
    text = Text(gm, constants)
    results = Results(gm, text)
    source = text.convert(results.returned)
    backend = options.backend_of(device_of(gm))
    settings = list(options.more)
    if without_number(backend) == "cpu" and all(name != "threads" for name, _ in settings):
        settings.append(("threads", str(torch.get_num_threads())))
    places = text.places + [f"constant:{n.name}" for n in text.names if n.op == "get_attr"]
    body = _body(gm, text, results)
    mode = options.mode_of(backend)
    follows_flags = precision.is_followed(gm, backend, settings)
    names = [str(n.target) for n in text.names if n.op == "get_attr"]
    plain = None if options.fallback == "error" or recurrent.has_backward(gm) else Plain.of(gm, names)
    return Recipe(source, places, backend, mode, settings, options.cache, follows_flags, body, text.tensors, plain)


def _body(gm: GraphModule, text: Text, results: Results) -> str | None:
    """The code around the call; ``None`` where the code's results are those of the graph."""
    plain = [f"r[{i}]" for i in range(len(results.returned))]
    arguments = gm.graph.find_nodes(op="placeholder")
    placeholders = [n.meta.get("val") for n in arguments]
    lazy = [i for i, v in enumerate(placeholders) if isinstance(v, torch.Tensor) and (v.is_conj() or v.is_neg())]
    on_device = lambda v: isinstance(v, torch.Tensor) and v.device.type != "cpu"
    # Compiled code reads tensors of a device in place whose elements lie apart, and writes dense ones; those of the host it copies itself.
    in_place = lambda i, v: is_dense(v) or text.places[i] == "read" and is_apart(v)
    gaps = [i for i, v in enumerate(placeholders) if on_device(v) and v.layout is torch.strided and not in_place(i, v)]
    # Page-locked memory would be read when the device gets to it, which may be after the call.
    read_here = lambda i: not text.places[i].startswith("constant")
    hosts = [i for i, n in enumerate(arguments) if host_inputs.is_only_moved(n) and read_here(i)]
    # It has complex numbers on a device as pairs of real ones, and returns numbers of the host on the device.
    returned = [n.meta["val"] for n in results.returned]
    pairs = [i for i, v in enumerate(returned) if v.is_complex() and on_device(v)]
    numbers = [i for i, v in enumerate(returned) if not on_device(v)] if device_of(gm) != "cpu" else []
    if results.expressions == plain and not (results.strange or lazy or gaps or hosts or pairs or numbers or text.tensors):
        return None
    lines = ["def call(args):", *(f"    {line}" for line in results.before)]
    lines += [f"    {name} = args[{i}]" for i, name in sorted(results.kept.items())]
    lines += [f"    args[{i}] = resolved(args[{i}])" for i in lazy]
    # Resolving does away with gaps, which compiled code was told of.
    told = [i for i in lazy if on_device(placeholders[i]) and i not in gaps and not is_dense(placeholders[i])]
    lines += [f"    args[{i}] = restrided(args[{i}], {tuple(placeholders[i].shape)}, {placeholders[i].stride()})" for i in told]
    lines += [f"    args[{i}] = pageable(args[{i}])" for i in hosts]
    written = [i for i in gaps if text.places[i] == "write"]
    lines += [f"    w{i} = args[{i}]" for i in written]
    lines += [f"    args[{i}] = args[{i}].contiguous()" for i in gaps]
    lines += [f"    d{i} = args[{i}]" for i in written]
    if text.tensors:
        lines.append("    args.extend(constants)")
    lines += ["    try:", "        r = code(args)", "    except Error as e:"]
    # Written inputs are passed as copies here, which nobody would copy back.
    lines.append("        raise" if written else f"        return otherwise(args[:{len(placeholders)}], e)")
    lines += [f"    w{i}.copy_(d{i})" for i in written]
    lines += [f"    r[{i}] = r[{i}].to('cpu')" for i in numbers]
    lines += [f"    r[{i}] = as_complex(r[{i}])" for i in pairs]
    lines += [f"    {line}" for line in results.after]
    lines += [f"    r[{i}] = restrided(r[{i}], {strides})" for i, strides in results.strange.items()]
    lines.append(f"    return [{', '.join(results.expressions)}]")
    return "\n".join(lines)


def _restrided(t: torch.Tensor, sizes: tuple, strides: tuple) -> torch.Tensor:
    """The same elements in eager PyTorch's strides, which may repeat elements or leave gaps."""
    new = torch.empty_strided(sizes, strides, dtype=t.dtype, device=t.device)
    if 0 in strides:
        index = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
        new[index] = t[index]
        return new
    return new.copy_(t)


def _pageable(t: torch.Tensor) -> torch.Tensor:
    """The tensor, copied where its memory is page-locked."""
    return t.clone() if t.is_pinned() else t


OTHER_DEVICE = "it is not on the device of most of the graph"
"""Why nodes are refused that another device computes."""


def name_of(device: torch.device) -> str:
    """A device as backends are named: the first of its type by the type alone."""
    return f"{device.type}:{device.index}" if device.type != "cpu" and device.index else device.type


def devices_at(node: Node) -> set[str]:
    """The devices of a node's tensors; numbers of the host may stand among tensors of a device."""
    value = node.meta.get("val")
    tensors = [t for t in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(t, torch.Tensor)]
    return {name_of(t.device) for t in tensors if t.device.type != "cpu" or t.dim() > 0}


def devices_used(node: Node) -> set[str]:
    """The devices of a node's tensors and of those that it reads. Arguments of the host that are only moved may lie there:
    each call moves them."""
    if host_inputs.is_only_moved(node):
        return set()
    reads = [] if host_inputs.is_move(node) and host_inputs.is_only_moved(node.args[0]) else node.all_input_nodes
    return devices_at(node).union(*map(devices_at, reads))


def device_of(gm: GraphModule) -> str:
    """The device of a graph's tensors: where there are several besides the host, the one of most nodes. Raises ``Unsupported`` with the
    nodes of the others."""
    used = {node: devices_used(node) for node in gm.graph.nodes}
    counts = Counter(kind for kinds in used.values() for kind in kinds)
    apart = [kind for kind in counts if kind != "cpu"]
    home = min(apart, key=lambda kind: (-counts[kind], kind), default="cpu")
    if len(counts) > 1:
        nodes = [n for n, kinds in used.items() if n.op == "call_function" and kinds - {home}]
        if nodes:
            reason = f"the graph has tensors on {' and '.join(sorted(counts))}"
            raise _native.Unsupported(reason, [(n.name, str(n.target), OTHER_DEVICE) for n in nodes])
    return home
