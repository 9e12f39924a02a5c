"""Graphs as torch runs them, for calls that compiled code refuses: sizes may be beyond what the compiler assumes of them where TorchDynamo,
whose guards they pass, assumes nothing.

A graph is kept as the Python text that torch makes of it, so that a later process, which finds the compiled code in a cache, has it too.

Not here: operators that are not supported, which are split off (`fallback`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.fx import GraphModule
from torch.fx.graph_module import _format_import_block, _forward_from_src
from torch.package.importer import sys_importer

from . import _native, operators as _operators  # noqa: F401 - such a text may name them, also one that a cache has
from .graph import mutated_inputs


class FallbackWarning(UserWarning):
    """Operators that torch runs."""


@dataclass
class Plain:
    """A graph as text."""

    source: str
    """Imports, and a function ``forward(self, …)``."""
    names: list[str]
    """Names of the constants, in the order in which the compiled code is given them."""
    mutates: bool
    """Whether it writes to its arguments."""

    @staticmethod
    def of(gm: GraphModule, names: list[str]) -> Plain | None:
        """``None`` for a graph with other graphs in it."""
        if any(isinstance(module, GraphModule) for module in gm.children()):
            return None
        code = gm.graph.python_code("self")
        return Plain(_format_import_block(code.globals, sys_importer) + code.src, names, bool(mutated_inputs(gm)))

    def otherwise(self, constants: list[torch.Tensor]) -> Callable[[list, Exception], list]:
        """What has the results of a call that failed, from its arguments and the error. Raises the error where the call may have written
        an input."""
        made: list[Callable] = []

        def call(args: list, error: Exception) -> list:
            if self.mutates and not isinstance(error, _native.Mismatch):
                raise error
            if not made:
                made.append(self._function(constants))
                message = f"ferroflux: torch runs calls of a graph that the compiled code refuses: {error}"
                warnings.warn(message, FallbackWarning, stacklevel=2)
            given = list(args)
            args.clear()
            results = made[0](*given)
            return list(results) if isinstance(results, (list, tuple)) else [results]

        return call

    def _function(self, constants: list[torch.Tensor]) -> Callable[..., Any]:
        holder = torch.nn.Module()
        for name, value in zip(self.names, constants):
            at = holder
            *path, last = name.split(".")
            for part in path:
                if not hasattr(at, part):
                    setattr(at, part, torch.nn.Module())
                at = getattr(at, part)
            setattr(at, last, value)
        forward = _forward_from_src(self.source, {})
        return lambda *args: forward(holder, *args)
