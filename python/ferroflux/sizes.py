"""Symbolic sizes: sympy's expressions as the compiler's text, which Python reads too.

Symbols are numbered in the order in which they are met and are called ``s0``, ``s1``, …, in fx text and in the generated
code around a call alike.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from . import _native

LARGE = 2**62
# Where torch keeps sizes at capture; the second is the name in versions that lack the first.
TABLES = ("backed_var_to_val",) if hasattr(ShapeEnv, "backed_var_to_val") or "backed_var_to_val" in vars(ShapeEnv()) else ("var_to_val",)


class Refused(_native.Unsupported):
    """A part of a graph that cannot be expressed."""

    def __init__(self, node: str, target: str, reason: str):
        super().__init__(f"`{node}` ({target}): {reason}", [(node, target, reason)])


class Symbols:
    """The size symbols of one graph."""

    def __init__(self) -> None:
        self.names: dict[sympy.Symbol, str] = {}
        self.shape_env: Any = None

    def text(self, size: Any) -> str:
        """An integer, a ``SymInt`` or an expression as text. Raises ``Refused`` for functions that sizes cannot have."""
        if isinstance(size, torch.SymInt):
            self.shape_env = self.shape_env or size.node.shape_env
            size = size.node.expr
        if isinstance(size, int):
            return str(int(size))
        return self._expression(sympy.sympify(size))

    def _expression(self, e: sympy.Basic) -> str:
        if e.is_Integer:
            return str(int(e))
        if e.is_Symbol:
            return self.names.setdefault(e, f"s{len(self.names)}")
        name, parts = type(e).__name__, e.args
        if e.is_Add:
            return "(" + " + ".join(map(self._expression, parts)) + ")"
        if e.is_Mul and all(p.is_Integer or not p.is_number for p in parts):
            return "(" + "*".join(map(self._expression, parts)) + ")"
        if e.is_Pow and parts[1].is_Integer and 0 < int(parts[1]) < 16:
            return "(" + "*".join([self._expression(parts[0])] * int(parts[1])) + ")"
        if name in ("FloorDiv", "CleanDiv", "IntTrueDiv") and name != "IntTrueDiv":
            return f"({self._expression(parts[0])} // {self._expression(parts[1])})"
        if name == "CeilDiv":
            a, b = map(self._expression, parts)
            return f"(({a} + {b} - 1) // {b})"
        if name in ("Mod", "PythonMod"):
            return f"({self._expression(parts[0])} % {self._expression(parts[1])})"
        if name in ("Max", "Min"):
            return f"{name.lower()}({', '.join(map(self._expression, parts))})"
        raise Refused("", "", f"the size {e} cannot be expressed ({name})")

    def declarations(self, given: set) -> list[str]:
        """A line of fx text for each symbol: its range, and the size at capture for heuristics; ``given`` are those that
        arguments have."""
        return [self._declaration(symbol, name, symbol in given) for symbol, name in self.names.items()]

    def bounds(self, symbol: sympy.Symbol) -> tuple[int, int | None]:
        """The range of a symbol; ``-2**62`` and ``None`` where it has no end."""
        known = getattr(self.shape_env, "var_to_range", {}).get(symbol)
        if known is None:
            return 0, None
        finite = lambda b: bool(getattr(b, "is_Integer", False)) and abs(int(b)) < LARGE
        low = int(known.lower) if finite(known.lower) else -LARGE
        return low, int(known.upper) if finite(known.upper) else None

    def _declaration(self, symbol: sympy.Symbol, name: str, is_given: bool) -> str:
        low, high = self.bounds(symbol)
        hint = None
        # The second name is that of older versions of torch.
        for table in TABLES:
            known = getattr(self.shape_env, table, None)
            value = None if known is None else known.get(symbol)
            if value is not None and getattr(value, "is_Integer", isinstance(value, int)):
                hint = int(value)
                break
        if hint is None:
            # torch bounds what data decides by the size of one operand, which another one may exceed by broadcasting.
            high = None
        rest = f" hint {hint}" if hint is not None else "" if is_given else " unbacked"
        return f'  symbol {name} "{symbol}" {low}..{"" if high is None else f"={high}"}{rest}'
