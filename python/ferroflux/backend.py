"""The backend that ``torch.compile(…, backend="ferroflux")`` calls with each captured graph.

AOTAutograd makes functional graphs of it (forward, backward, or inference), which ``runner`` compiles; ``fallback`` splits
off what is not supported.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable

import torch
from torch.fx import GraphModule

from . import _native, decompositions, fallback, fused_attention, layouts, partition
from .options import Options, parse

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_native.before_fork, after_in_child=_native.after_fork)


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

    def compile_graph(gm: GraphModule, example_inputs: Any) -> fallback.Compiled:
        constants = static_names(gm, kind) if options.freeze else set()
        fused_attention.hide_by_infinity(gm)
        if kind == "backward":
            layouts.follow(gm, example_inputs)
        eager = {node: node.meta["val"] for node in gm.graph.nodes if "val" in node.meta}
        strides = layouts.keep_channels_last(gm) if kind == "forward" else []
        done = fallback.compiled(gm, options, constants)
        if strides and not done.is_whole:
            # torch runs parts of it, whose results have its own strides.
            for node, value in eager.items():
                node.meta["val"] = value
            return fallback.compiled(gm, options, constants)
        layouts.tell(strides)
        return done

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

    chosen = parse(mode, options)
    # Eager PyTorch draws the numbers of the plain form on the CPU.
    fused_attention.ask_for_fused(gm, dropped=() if chosen.random == "torch" else ("cpu",))
    plain = {kind: compiler(chosen, kind) for kind in ("forward", "backward", "inference")}
    if kept(chosen):
        from . import aot_cache
        from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

        def of(kind: str) -> Callable:
            compile = lambda gm, inputs: aot_cache.Compiled(plain[kind](gm, inputs))
            return SerializableAOTDispatchCompiler(aot_cache.Compiled, compile)

        around = aot_cache.settings(chosen)
        if getattr(torch._dynamo.config, "caching_precompile", False):
            aot_cache.keep_frames_at_exit()
    else:

        def of(kind: str) -> Callable:
            return lambda gm, inputs: plain[kind](gm, inputs).call

        around = contextlib.nullcontext()
    with around:
        return aot_autograd(
            fw_compiler=of("forward"),
            bw_compiler=of("backward"),
            inference_compiler=of("inference"),
            decompositions=decompositions.table(),
            partition_fn=partition.partition,
            keep_inference_input_mutations=True,
        )(gm, example_inputs)


def kept(options: Options) -> bool:
    """Whether this torch keeps AOTAutograd's results for later processes, and the user wants that."""
    try:
        from . import aot_cache
    except ImportError:
        return False
    return aot_cache.is_wanted(options)
