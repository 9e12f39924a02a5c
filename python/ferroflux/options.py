"""The settings of ``torch.compile(…, backend="ferroflux", mode=…, options={…})``, checked once.

Not here: what the settings do. Options of a backend itself (``threads`` of ``cpu``) are read from the backend.
"""

from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass, field
from typing import Any

from . import _native

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
FALLBACKS = ("torch", "error")
GENERATORS = ("own", "torch")


@dataclass(frozen=True)
class Options:
    """Settings of one compilation."""

    backend: str | None = None
    """Name of a backend (``cuda``, or ``cuda:1`` for its device of this number) or path of a plugin library; ``None`` follows the device
    of the tensors."""
    mode: str = "default"
    fallback: str = "torch"
    """What becomes of operators that are not supported: run by ``torch``, or an ``error``."""
    freeze: bool = True
    """Whether weights are bound and packed in inference."""
    cache: bool = True
    """Whether compiled programs are kept for later processes."""
    random: str = "own"
    """Whose random numbers a graph draws: this project's ``own`` generator's, or those of eager PyTorch (``torch``)."""
    more: tuple[tuple[str, str], ...] = field(default=())
    """Options of the backend, as text."""

    def backend_of(self, device: str) -> str:
        """The backend for tensors of this device (``cuda``, ``cuda:1``). Raises ``Unsupported`` where the user named another device."""
        if self.backend is None:
            return device
        kind, _, number = device.partition(":")
        name = without_number(self.backend)
        # torch knows AMD's devices by the same name.
        if kind == "cpu" or name not in (kind, "rocm"):
            return self.backend
        if self.backend == name:
            return f"{name}:{number}" if number else name
        if self.backend != f"{name}:{number or 0}":
            raise _native.Unsupported(f"the graph has tensors on {device}, and the backend is `{self.backend}`", [])
        return self.backend

    def mode_of(self, backend: str) -> str:
        """The mode, or ``default`` where the backend has no such mode."""
        known = backends().get(without_number(backend))
        return self.mode if known is None or self.mode in known["modes"] else "default"

    def key(self) -> str:
        """A text that differs where a graph is compiled differently."""
        return repr(self)


@functools.cache
def backends() -> dict[str, dict[str, Any]]:
    """The backends by name."""
    return {b["name"]: b for b in json.loads(_native.list_backends())}


def without_number(backend: str) -> str:
    """A backend's name without the number of its device."""
    name, _, number = backend.rpartition(":")
    return name if name and number.isascii() and number.isdigit() else backend


def near(name: str, known: list[str]) -> str:
    """`; did you mean …?`, or nothing."""
    found = difflib.get_close_matches(name, known, 1)
    return f"; did you mean `{found[0]}`?" if found else ""


def parse(mode: str | None, options: dict[str, Any] | None) -> Options:
    """Checks what the user gave.

    Raises ``ValueError`` that names the option, what it takes, and the nearest name that exists.
    """
    given = dict(options or {})
    chosen: dict[str, Any] = {}
    if mode is not None and "mode" in given:
        raise ValueError("ferroflux: the mode is given twice, as `mode` and among the options")
    mode = given.pop("mode", mode) or "default"
    if mode not in MODES:
        raise ValueError(f"ferroflux: there is no mode `{mode}`: one of {', '.join(MODES)}{near(str(mode), list(MODES))}")
    backend = given.pop("backend", None)
    if backend is not None:
        chosen["backend"] = checked_backend(backend)
    fallback = given.pop("fallback", "torch")
    if fallback not in FALLBACKS:
        raise ValueError(f"ferroflux: `fallback` is `torch` or `error`, not `{fallback}`")
    chosen["random"] = given.pop("random", "own")
    if chosen["random"] not in GENERATORS:
        raise ValueError(f"ferroflux: `random` is `own` or `torch`, not `{chosen['random']}`")
    for name in ("freeze", "cache"):
        value = given.pop(name, True)
        if not isinstance(value, bool):
            raise ValueError(f"ferroflux: `{name}` is True or False, not {value!r}")
        chosen[name] = value
    more = backend_options(given, backend)
    return Options(mode=mode, fallback=fallback, more=more, **chosen)


def checked_backend(backend: Any) -> str:
    if not isinstance(backend, str):
        raise ValueError(f"ferroflux: `backend` is the name of a backend or the path of a library, not {backend!r}")
    known = backends()
    if "/" in backend or "\\" in backend:
        return backend
    name = without_number(backend)
    if name not in known:
        raise ValueError(f"ferroflux: there is no backend `{name}`: one of {', '.join(known)}{near(name, list(known))}")
    why = known[name]["unavailable_because"]
    if why:
        raise ValueError(f"ferroflux: the backend `{name}` cannot run here: {why}")
    numbers = [str(d["device"][1]) for d in known[name]["devices"]]
    if backend != name and str(int(backend[len(name) + 1 :])) not in numbers:
        raise ValueError(f"ferroflux: the backend `{name}` has no device of that number: one of {', '.join(numbers)}")
    return backend


def backend_options(given: dict[str, Any], backend: str | None) -> tuple[tuple[str, str], ...]:
    known = backends()
    name = backend and without_number(backend)
    own = {o["name"] for b in known.values() if name in (None, b["name"]) for o in b["options"]}
    if name is not None and name not in known:
        own = set(given)
    for name in given:
        if name not in own:
            all_names = sorted(own | {"backend", "mode", "fallback", "freeze", "cache", "random"})
            raise ValueError(f"ferroflux: there is no option `{name}`: one of {', '.join(all_names)}{near(name, all_names)}")
    text = lambda value: str(value).lower() if isinstance(value, bool) else str(value)
    return tuple((name, text(value)) for name, value in given.items())
