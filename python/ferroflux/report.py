"""What became of a function: ``ferroflux.explain``. Text, and a page for notebooks."""

from __future__ import annotations

import html
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable


@dataclass
class Report:
    """The graphs of a function with their kernels, and what torch runs."""

    graphs: list[dict[str, Any]] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graphs"]
        for n, graph in enumerate(self.graphs):
            operators, kernels = graph["operators"], graph["kernels"]
            lines.append(f"graph {n}: {sum(operators.values())} operators, {len(kernels)} kernels")
            for name, kind, nodes in kernels:
                lines.append(f"  {kind:<8} {name}: {', '.join(nodes)}")
        lines += ["run by torch:", *self.fallbacks] if self.fallbacks else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return "".join(map(table, self.graphs)) + f"<pre>{html.escape(chr(10).join(self.fallbacks))}</pre>"


def table(graph: dict[str, Any]) -> str:
    """A graph's kernels as a table in HTML."""
    rows = "".join(
        f"<tr><td>{html.escape(kind)}</td><td>{html.escape(name)}</td><td>{html.escape(', '.join(nodes))}</td></tr>"
        for name, kind, nodes in graph["kernels"]
    )
    return f"<table><tr><th>kind</th><th>kernel</th><th>operators</th></tr>{rows}</table>"


def explained(function: Callable, args: tuple, keywords: dict[str, Any], options: dict[str, Any]) -> Report:
    """Compiles and calls ``function`` once."""
    import torch

    from . import fallback, runner

    report = Report()
    listen = lambda text, code: report.graphs.append({"text": text, **code.explain()})
    runner.LISTENERS.append(listen)
    known = set(fallback._warned)
    fallback._warned.clear()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch._dynamo.reset()
            torch.compile(function, backend="ferroflux", options=options or None)(*args, **keywords)
        for w in caught:
            if issubclass(w.category, fallback.FallbackWarning):
                report.fallbacks += str(w.message).splitlines()[1:]
            else:
                warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    finally:
        runner.LISTENERS.remove(listen)
        fallback._warned.update(known)
    return report
