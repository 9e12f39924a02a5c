"""Archives of ``torch.export``, run without torch."""

from __future__ import annotations

from typing import Any

from . import _native


class Model:
    """A compiled archive; call it with arrays of any framework that has ``__dlpack__``, numbers and text.

    Results are NumPy arrays where an argument is one, tensors of torch where one is; else ``Array``, which every framework
    takes by its ``from_dlpack``. A model with one result returns that, others a tuple.
    """

    def __init__(self, path: str, backend: str, mode: str, weights: str | None, options: dict[str, Any]):
        text = lambda value: str(value).lower() if isinstance(value, bool) else str(value)
        settings = [(name, text(value)) for name, value in options.items()]
        self._code = _native.Archive(path, backend, mode, settings, weights)

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """Name and description of each input, such as ``("x", "f32[1, 3, 224, 224]")``."""
        return self._code.inputs

    @property
    def code(self) -> str:
        """The graph as code."""
        return self._code.code()

    def explain(self) -> dict[str, Any]:
        """Operators with counts, kernels, and bytes of memory."""
        return self._code.explain()

    def __call__(self, *args: Any) -> Any:
        results = [_as_given(r, args) for r in self._code(*args)]
        return results[0] if len(results) == 1 else tuple(results)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name}: {kind}" for name, kind in self.inputs)
        return f"<ferroflux model on {self._code.backend}: ({inputs})>"

    def _repr_html_(self) -> str:
        from .report import table

        return table(self.explain()) + self._code.svg()


def _as_given(result: Any, args: tuple) -> Any:
    for arg in args:
        module = type(arg).__module__.partition(".")[0]
        if module == "torch":
            import torch

            return torch.from_dlpack(result)
        if module == "numpy" and result.dtype not in ("bf16",):
            import numpy

            return numpy.from_dlpack(result)
    return result
