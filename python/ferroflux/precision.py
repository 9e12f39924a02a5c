"""What torch's flags let CUDA compute in tf32: float32 convolutions by default, matrix products where the user says so.

Eager PyTorch reads the flags at each call, and TorchDynamo guards the older of the two alone; so compiled code looks at them
at each call too, and is compiled once for each answer. Not here: what tf32 is (the option ``tf32`` of the backend).
"""

from __future__ import annotations

from typing import Callable

import torch
from torch.fx import GraphModule

from .options import without_number

OPTION = "tf32"
# What names of operators that multiply have in them, after AOTAutograd.
MULTIPLIES = ("conv", "mm", "mv", "dot", "matmul", "linear", "einsum", "attention", "lstm", "gru", "rnn")
ROUNDED = (torch.float32, torch.complex64)


def is_allowed(operator: str) -> bool:
    """Whether torch lets cuDNN's ``conv`` or cuBLAS's ``matmul`` round to tf32."""
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    if read is not None:
        # What the new flags (`fp32_precision`) say; the old ones set them too, and raise when read after these were set.
        return read("cuda", operator) == OPTION
    return torch._C._get_cudnn_allow_tf32() if operator == "conv" else torch._C._get_cublas_allow_tf32()


def wanted() -> str:
    """The value of the option ``tf32`` that does what torch's flags say."""
    if is_allowed("conv"):
        return "on" if is_allowed("matmul") else "convolutions"
    return "products" if is_allowed("matmul") else "off"


def is_followed(gm: GraphModule, backend: str, settings: list[tuple[str, str]]) -> bool:
    """Whether a graph is compiled by torch's flags: it multiplies float32 numbers on CUDA, and the user said nothing."""
    if without_number(backend) != "cuda" or any(name == OPTION for name, _ in settings):
        return False
    modules = [module for module in gm.modules() if isinstance(module, GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes if node.op == "call_function"]
    return any(map(multiplies, nodes))


def multiplies(node: torch.fx.Node) -> bool:
    """Whether a node is a product or convolution of float32 numbers."""
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else (value,)
    name = str(node.target)
    return any(getattr(v, "dtype", None) in ROUNDED for v in values) and any(part in name for part in MULTIPLIES)


def following(compile: Callable[[str], Callable[[list], list]]) -> Callable[[list], list]:
    """A function that calls what ``compile`` makes for the flags of the time of each call. It is made for the flags of now
    at once, so that errors come when they are expected."""
    compiled = {now: compile(now) for now in (wanted(),)}

    def call(args: list) -> list:
        now = wanted()
        code = compiled.get(now)
        if code is None:
            code = compiled[now] = compile(now)
        return code(args)

    call._boxed_call = True
    return call
