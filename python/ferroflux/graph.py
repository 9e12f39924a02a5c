"""FX graphs after AOTAutograd as fx text, the compiler's own form of graphs.

A graph is text in one pass over its nodes. What cannot be expressed raises ``Refused`` with the node's name. Not here: what
is done with that (``fallback``), and the values that a call returns (``runner``).
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .sizes import Refused, Symbols

DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
FORMATS = {
    torch.contiguous_format: "contiguous",
    torch.preserve_format: "preserve",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
}
# torch's numbers of dtypes, by which schemas state defaults.
SCALAR_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
# Conditions on sizes that TorchDynamo's guards and the compiler's own checks see to.
CHECKS = {
    "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
}
# Their results after the first are positions and counts, which torch's own tracing gives the dtype of the first.
POSITIONS = {"aten._unique.default", "aten._unique2.default", "aten.unique_dim.default", "aten.unique_consecutive.default"}


# Control flow: operators whose operands are graphs.
CONTROL_FLOW = {"cond", "while_loop", "scan", "map_impl", "associative_scan"}


def quoted(text: str) -> str:
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _symbols(value: Any) -> set:
    """The symbols in the sizes of a value."""
    if isinstance(value, (list, tuple)):
        return set().union(*map(_symbols, value))
    if isinstance(value, torch.SymInt):
        return value.node.expr.free_symbols
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    return set().union(*(s.node.expr.free_symbols for s in sizes if isinstance(s, torch.SymInt)))


def _elements(name: str, values: Any) -> list[tuple[str, Any]]:
    """The elements of a result, those of a list among them one by one, each with its name."""
    found = []
    for i, value in enumerate(values):
        is_list = isinstance(value, (list, tuple))
        found += _elements(f"{name}.{i}", value) if is_list else [(f"{name}.{i}", value)]
    return found


def mutated_inputs(gm: GraphModule) -> set[Node]:
    """The placeholders that the graph writes: the targets of the copies at its end."""
    found = set()
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if isinstance(node.args[0], Node) and node.args[0].op == "placeholder":
            found.add(node.args[0])
    return found


class Text:
    """The text of one graph, and what its caller has to know of it."""

    def __init__(self, gm: GraphModule, constants: set[str], outer: Text | None = None):
        """``constants`` are names of placeholders that are bound where they can be; ``outer`` is the graph around a subgraph."""
        self.gm = gm
        self.outer = outer
        self.symbols = Symbols() if outer is None else outer.symbols
        self.subgraphs: list[str] = []
        self.constants = constants
        self.names: dict[Node, str] = {}
        self.inputs: list[str] = []
        self.lines: list[str] = []
        self.places: list[str] = []
        """What is done with each argument of a call."""
        self.tensors: list[torch.Tensor] = []
        """Constants of the graph itself, which follow the arguments."""
        self.mutated = mutated_inputs(gm)

    def convert(self, returned: list[Node]) -> str:
        """The text with these results. Raises ``Refused`` for the first node that cannot be expressed."""
        body = self._body(returned)
        head = self.symbols.declarations(self.given)
        return "\n".join(['fx 1.0\n\ngraph "graph" {', *head, *body, "}\n"])

    def _body(self, returned: list[Node]) -> list[str]:
        """All lines but those of the symbols."""
        placeholders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        self._note_symbols(placeholders)
        for node in self.gm.graph.nodes:
            try:
                self._node(node)
            except Refused as e:
                raise Refused(node.name, str(node.target), e.args[1][0][2]) from None
        returns = [f"  return {self._argument(n)}" for n in returned]
        return [*self.subgraphs, *self.inputs, *self.lines, *returns]

    def _note_symbols(self, placeholders: list[Node]) -> None:
        """Which symbols a tensor's shape gives."""
        self.given: set = set() if self.outer is None else set(self.outer.given)
        for node in placeholders:
            value = node.meta.get("val")
            for size in value.shape if isinstance(value, torch.Tensor) else ():
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    self.given.add(size.node.expr)

    # -- types ------------------------------------------------------------------------------------------------------------

    def _meta(self, t: torch.Tensor) -> str:
        dtype = DTYPES.get(t.dtype)
        if dtype is None:
            raise Refused("", "", f"tensors of {t.dtype} are not supported")
        if t.layout is not torch.strided or type(t).__name__ not in ("FakeTensor", "Tensor", "Parameter", "FunctionalTensor"):
            raise Refused("", "", f"tensors of layout {t.layout} and class {type(t).__name__} are not supported")
        sizes = ", ".join(map(self.symbols.text, t.shape))
        strides = ", ".join(map(self.symbols.text, t.stride()))
        device = "" if t.device.type == "cpu" else f"@{t.device}"
        return f"{dtype}[{sizes}]{{{strides}}}{device}"

    def _type(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self._meta(value)
        if value is None:
            return "none"
        if isinstance(value, (bool, torch.SymBool)):
            return "bool"
        if isinstance(value, (int, torch.SymInt)):
            return f"int({self.symbols.text(value)})"
        if isinstance(value, (float, torch.SymFloat)):
            return "float"
        raise Refused("", "", f"a value of type {type(value).__name__} is not supported")

    # -- nodes ------------------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        if node.op == "placeholder":
            self._placeholder(node)
        elif node.op == "get_attr":
            self._constant(node)
        elif node.op == "call_function":
            self._call(node)
        elif node.op != "output":
            raise Refused("", "", f"nodes of kind {node.op} are not supported")

    def _placeholder(self, node: Node) -> None:
        value = node.meta.get("val")
        name = self.names[node] = node.name
        if isinstance(value, torch.Tensor):
            line, kind = f"  %{name}: {self._meta(value)}", "input"
            fixed = all(isinstance(n, int) for n in (*value.shape, *value.stride()))
            if node in self.mutated:
                self.places.append("write")
            elif name in self.constants and fixed:
                self.places.append(f"constant:{name}")
                kind = "parameter"
            else:
                self.places.append("read")
            self.inputs.append(f"{line} = {kind} {quoted(name)}")
        elif isinstance(value, torch.SymInt):
            self._integer(name, value)
        elif value is None or isinstance(value, (int, float, bool, str)):
            self.places.append("skip")
        else:
            raise Refused("", "", f"an input of type {type(value).__name__} is not supported")

    def _integer(self, name: str, value: torch.SymInt) -> None:
        expression = value.node.expr
        free = expression.free_symbols
        text = self.symbols.text(value)
        # The ragged size of a nested tensor stands for no number, and no dense tensor has it.
        ragged = isinstance(value.node.hint, torch.SymInt)
        if ragged or free <= self.given:
            self.places.append("skip")
        elif expression.is_Symbol and self.symbols.bounds(expression)[0] >= 0:
            # A tensor of that many elements, which takes no memory: the shape then gives the symbol.
            self.given.add(expression)
            self.places.append("size")
            self.inputs.append(f"  %{name}: u8[{text}]{{1}} = input {quoted(name)}")
        else:
            self.places.append("int")
            self.inputs.append(f"  %{name}: int({text}) = input {quoted(name)}")

    def _constant(self, node: Node) -> None:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.nn.Module):
            return
        if not isinstance(value, torch.Tensor):
            raise Refused("", "", f"a constant of type {type(value).__name__} is not supported")
        if self.outer is not None:
            raise Refused("", "", "a constant within control flow is not supported")
        self.names[node] = node.name
        self.tensors.append(value)
        self.inputs.append(f"  %{node.name}: {self._meta(value)} = parameter {quoted(node.name)}")

    def _call(self, node: Node) -> None:
        target, value = node.target, node.meta.get("val")
        if target is operator.getitem:
            source, index = node.args
            if source not in self.names:
                raise Refused("", "", f"an element of {source} is not supported")
            self.names[node] = f"{self.names[source]}.{index}"
            return
        if not isinstance(target, torch._ops.OpOverload):
            if isinstance(value, (int, torch.SymInt, torch.SymBool, torch.SymFloat, bool, float)):
                return  # Arithmetic on sizes: its readers have the expression.
            if isinstance(target, torch._ops.HigherOrderOperator) and target.name() in CONTROL_FLOW:
                self._control_flow(node)
                return
            raise Refused("", "", "the operator is not one of ATen's")
        name = str(target)
        if name in CHECKS:
            return
        takes_tensor = any(isinstance(a, Node) and isinstance(a.meta.get("val"), torch.Tensor) for a in node.all_input_nodes)
        if isinstance(value, (int, torch.SymInt, torch.SymBool, torch.SymFloat)) and not takes_tensor:
            return
        if isinstance(value, torch.SymInt) and not value.node.expr.is_Symbol or name.startswith("aten.sym_"):
            return
        new = _symbols(value).difference(*(_symbols(a.meta.get("val")) for a in node.all_input_nodes))
        if any(symbol in self.given for symbol in new):
            raise Refused("", "", "it computes a size again that an input has")
        self.names[node] = node.name
        name, arguments = self._operator(node, name)
        text = f"{name}({', '.join(arguments)})"
        if isinstance(value, (tuple, list)):
            elements = _elements(node.name, value)
            types = [self._type(v) for _, v in elements]
            if name in POSITIONS:
                types[1:] = [f"i64{t[t.index('['):]}" for t in types[1:]]
            results = ", ".join(f"%{n}: {t}" for (n, _), t in zip(elements, types))
        elif value is None:
            results = ""
        else:
            results = f"%{node.name}: {self._type(value)}"
        self.lines.append(f"  {results} = {text}" if results else f"  {text}")

    def _control_flow(self, node: Node) -> None:
        """A call with graphs among its arguments. Numbers are no operands: the graphs mention the symbols themselves."""
        arguments = []
        for argument in node.args:
            if isinstance(argument, Node) and isinstance(graph := getattr(self.gm, str(argument.target), None), GraphModule):
                if argument.op == "get_attr":
                    arguments.append(self._subgraph(argument.name, graph))
                    continue
            if isinstance(argument, (list, tuple)):
                arguments.append("[" + ", ".join(self._argument(a) for a in argument if not self._is_number(a)) + "]")
            else:
                arguments.append(self._argument(argument))
        if node.target.name() == "while_loop" and any(map(self._is_number, node.args[2])):
            raise Refused("", "", "a loop that carries a number is not supported; make it a tensor")
        self.names[node] = node.name
        results = ", ".join(f"%{node.name}.{i}: {self._type(v)}" for i, v in enumerate(node.meta["val"]))
        self.lines.append(f"  {results} = higher_order.{node.target.name()}({', '.join(arguments)})")

    @staticmethod
    def _is_number(argument: Any) -> bool:
        held = argument.meta.get("val") if isinstance(argument, Node) else argument
        return held is None or isinstance(held, (int, float, bool, torch.SymInt))

    def _subgraph(self, name: str, gm: GraphModule) -> str:
        """Adds a graph within this one; returns how arguments name it."""
        inner = Text(gm, set(), self)
        output = next(iter(reversed(gm.graph.nodes))).args[0]
        returned = list(output) if isinstance(output, (list, tuple)) else [output]
        if not all(isinstance(n, Node) for n in returned):
            raise Refused("", "", "a result within control flow that is no tensor is not supported")
        body = inner._body(returned)
        if any(place not in ("read", "skip") for place in inner.places):
            raise Refused("", "", "a number that control flow computes, or an operand that it mutates, is not supported")
        number = len(self.subgraphs)
        lines = "\n".join(f"  {line}" for text in body for line in text.split("\n"))
        self.subgraphs.append(f"  subgraph g{number} {quoted(name)} {{\n{lines}\n  }}")
        return f"&g{number}"

    def _operator(self, node: Node, name: str) -> tuple[str, list[str]]:
        """The operator's name and arguments; torch's own primitive operators by their equals in ATen."""
        if name == "prims.convert_element_type.default":
            x, dtype = node.args
            return "aten.to.dtype", [self._argument(x), self._argument(dtype), "false", "false", "none"]
        if name == "prims.iota.default":
            start, step = node.kwargs["start"], node.kwargs["step"]
            length = node.args[0]
            if isinstance(length, Node):
                length = length.meta["val"]
            end = start + length * step
            rest = [DTYPES[node.kwargs["dtype"]], "none", f"@{node.kwargs['device']}", "false"]
            return "aten.arange.start_step", [*map(self._argument, (start, end, step)), *rest]
        if name in ("prims.view_of.default", "prims.device_put.default"):
            return "aten.alias.default", [self._argument(node.args[0])]
        return name, self._arguments(node)

    # -- arguments --------------------------------------------------------------------------------------------------------

    def _arguments(self, node: Node) -> list[str]:
        """All arguments in the order of the schema, with their defaults."""
        found = []
        for n, spec in enumerate(node.target._schema.arguments):
            if n < len(node.args):
                value = node.args[n]
            elif spec.name in node.kwargs:
                value = node.kwargs[spec.name]
            else:
                value = spec.default_value if spec.has_default_value() else None
            kind = str(spec.type)
            if isinstance(value, int) and not isinstance(value, bool):
                if spec.name == "dtype" and not isinstance(value, torch.dtype):
                    value = SCALAR_TYPES[value] if value < len(SCALAR_TYPES) else value
            if isinstance(value, (int, float)) and not isinstance(value, bool) and "List" in kind:
                value = [value] * (spec.N or 1)
            found.append(self._argument(value, floating="float" in kind))
        return found

    def _argument(self, value: Any, floating: bool = False) -> str:
        if isinstance(value, Node):
            held = value.meta.get("val")
            if isinstance(held, torch.SymInt):
                return self.symbols.text(held)
            if value not in self.names or isinstance(held, (int, float)) and not isinstance(held, torch.SymFloat):
                if isinstance(held, (int, float, bool)):
                    return self._argument(held, floating)
                raise Refused("", "", f"the operand {value} is not supported")
            return f"%{self.names[value]}"
        if value is None:
            return "none"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, torch.SymInt)):
            return repr(float(value)) if floating and isinstance(value, int) else self.symbols.text(value)
        if isinstance(value, float):
            return "NaN" if math.isnan(value) else repr(value)
        if isinstance(value, str):
            return quoted(value)
        if isinstance(value, complex):
            return f"complex({value.real!r}, {value.imag!r})"
        if isinstance(value, torch.dtype):
            if value not in DTYPES:
                raise Refused("", "", f"{value} is not supported")
            return DTYPES[value]
        if isinstance(value, torch.device):
            return f"@{value}"
        if isinstance(value, torch.layout):
            return "strided" if value is torch.strided else "other_layout"
        if isinstance(value, torch.memory_format):
            return FORMATS[value]
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self._argument(v, floating) for v in value) + "]"
        raise Refused("", "", f"an argument of type {type(value).__name__} is not supported")
