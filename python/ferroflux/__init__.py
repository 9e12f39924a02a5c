"""The PyTorch 2 compiler stack in Rust, from Python.

``torch.compile(model, backend="ferroflux")`` compiles what TorchDynamo captures; this package is registered with torch when
it is installed. ``ferroflux.load("model.pt2")`` runs archives of ``torch.export`` without torch.

This file holds the public names. torch is imported by what needs it, not here.
"""

from __future__ import annotations

import atexit
import json
from typing import Any, Callable

from ._native import Array, Error, Mismatch, Unsupported, at_exit

__all__ = [
    "Array",
    "Error",
    "Mismatch",
    "Unsupported",
    "compile",
    "explain",
    "list_backends",
    "load",
]

atexit.register(at_exit)


def list_backends() -> list[dict[str, Any]]:
    """Every backend, usable or not: name, devices, modes, options, and ``unavailable_because`` where it cannot run."""
    from . import _native

    return json.loads(_native.list_backends())


def load(path: str, backend: str = "cpu", *, mode: str = "default", weights: str | None = None, **options: Any):
    """Reads and compiles an archive of ``torch.export``; returns a callable on arrays of any framework with DLPack.

    ``weights`` is a safetensors file with weights that the archive lacks; other keywords are options of the backend, such
    as ``threads=4``. Raises ``Error`` for an archive that cannot be read and ``Unsupported`` for operators that are not
    supported.
    """
    from .archive import Model

    return Model(str(path), backend, mode, weights, options)


def compile(model: Callable | None = None, **keywords: Any) -> Callable:
    """``torch.compile`` with this backend; keywords are those of ``torch.compile``."""
    import torch

    return torch.compile(model, backend="ferroflux", **keywords)


def explain(function: Callable, *args: Any, options: dict[str, Any] | None = None, **keywords: Any):
    """Compiles ``function`` for these arguments and returns what became of it: graphs, kernels, what torch runs.

    The result prints as text, and as a page in notebooks.
    """
    from .report import explained

    return explained(function, args, keywords, options or {})
