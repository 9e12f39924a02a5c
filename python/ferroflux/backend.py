"""The backend that ``torch.compile(…, backend="ferroflux")`` calls with each captured graph.

AOTAutograd makes functional graphs of it (forward, backward, or inference), which ``runner`` compiles; ``fallback`` splits
off what is not supported.
"""

from __future__ import annotations

import os
from typing import Any, Callable

import torch
from torch.fx import GraphModule

from . import _native, decompositions, fallback
from .options import Options, parse

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_native.after_fork)


def static_names(gm: GraphModule, kind: str) -> set[str]:
    """The inputs of an inference graph that are parameters and buffers, which rarely change."""
    if kind != "inference":
        return set()
    context = torch._guards.TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    if meta is None:
        return set()
    placeholders = gm.graph.find_nodes(op="placeholder")
    return {placeholders[i].name for i in meta.static_input_indices if i < len(placeholders)}


def compiler(options: Options, kind: str) -> Callable:
    """What AOTAutograd calls with a graph of this kind: ``forward``, ``backward`` or ``inference``."""

    def compile_graph(gm: GraphModule, example_inputs: Any) -> Callable[[list], list]:
        constants = static_names(gm, kind) if options.freeze else set()
        return fallback.compiled(gm, options, constants)

    return compile_graph


def ferroflux(
    gm: GraphModule,
    example_inputs: list,
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable:
    """Compiles one graph of TorchDynamo; ``mode`` and ``options`` are those of ``torch.compile``."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    chosen = parse(mode, options)
    return aot_autograd(
        fw_compiler=compiler(chosen, "forward"),
        bw_compiler=compiler(chosen, "backward"),
        inference_compiler=compiler(chosen, "inference"),
        decompositions=decompositions.table(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
