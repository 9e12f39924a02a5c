"""Compiled graphs in torch's own cache of AOTAutograd, so that a later process traces nothing again.

An entry has the recipe of each graph; the machine code behind it is in this project's cache. Graphs of which torch runs a
part are not kept. The key contains this build and the settings, so that nothing of another build is found.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import pathlib
from typing import Any, Callable

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from . import _native, fallback
from .options import Options


@dataclasses.dataclass
class Written:
    """A tensor as bytes. Torch reads and writes its entries while tensors are fake, when pickles of a device's tensors fail."""

    data: bytes
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    device: str

    @staticmethod
    def of(t: torch.Tensor) -> Written:
        with unset_fake_temporarily(), torch.no_grad():
            flat = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return Written(flat.numpy().tobytes(), t.dtype, tuple(t.shape), t.stride(), str(t.device))

    def read(self) -> torch.Tensor:
        with unset_fake_temporarily(), torch.no_grad():
            made = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=self.device)
            if self.data:
                made.copy_(torch.frombuffer(bytearray(self.data), dtype=self.dtype).reshape(self.sizes))
            return made


class Compiled(OutputCode):
    """A compiled graph as torch's cache keeps it."""

    def __init__(self, graph: fallback.Compiled):
        super().__init__()
        self.recipe = graph.recipe
        self.function: Callable[[list], list] | None = graph.call
        self._boxed_call = True
        self._time_taken_ns = 0
        self._fx_graph_cache_key = None
        self._fx_graph_cache_debug_lines = []

    def __call__(self, args: list) -> list:
        return self.function(args)

    def prepare_for_serialization(self) -> None:
        from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

        if self.recipe is None:
            raise BypassAOTAutogradCache("torch runs a part of this graph, or it exchanges with other processes")
        self.function = None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self.recipe is not None and self.recipe.constants:
            written = [Written.of(t) for t in self.recipe.constants]
            state["recipe"] = dataclasses.replace(self.recipe, constants=[])
            state["constants_written"] = written
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        written = state.pop("constants_written", [])
        self.__dict__.update(state)
        if written:
            self.recipe = dataclasses.replace(self.recipe, constants=[w.read() for w in written])

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        if self.function is None:
            self.function = self.recipe.function()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        pass


class Key(CustomGraphPass):
    """A pass that does nothing: torch's keys contain its identity."""

    def __init__(self, options: Options):
        self.text = f"ferroflux {_native.build()} {sources()} {options.key()} {torch.get_num_threads()}"

    def __call__(self, graph: Any) -> None:
        pass

    def uuid(self) -> str:
        return self.text


@functools.cache
def sources() -> str:
    """What this package's Python code is told by: another version makes other graphs with the same native module."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_wanted(options: Options) -> bool:
    """Whether entries are kept: neither cache is switched off."""
    own = options.cache and os.environ.get("FERROFLUX_CACHE") != "off"
    return own and torch._functorch.config.enable_autograd_cache


@functools.cache
def keep_frames_at_exit() -> None:
    """Where ``torch._dynamo.config.caching_precompile`` is set TorchDynamo's results are kept when the process ends, so that a
    later one traces nothing."""

    def keep() -> None:
        try:
            from torch._dynamo.precompile_context import PrecompileContext

            PrecompileContext.save_to_dynamo_cache()
        except Exception as e:
            logging.getLogger("ferroflux").warning("what TorchDynamo traced is not kept: %s", e)

    atexit.register(keep)


@contextlib.contextmanager
def without_inductors_backends():
    """torch's keys name TorchInductor's backends, which takes most of a second to load and says nothing of this one."""
    from torch._inductor import codecache

    stand_ins = {
        "init_backend_registration": lambda: None,
        "custom_backend_passes": {},
        "custom_backend_codegen_configs": {},
    }
    before = {name: getattr(codecache, name) for name in stand_ins if hasattr(codecache, name)}
    for name in before:
        setattr(codecache, name, stand_ins[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(codecache, name, value)


@contextlib.contextmanager
def without_lists_of_keys():
    """torch pickles each part of a key a second time, for its log, and loads TorchInductor's code for kernels of Triton that a graph
    may call."""
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import codecache
    from torch._library import triton

    pickler, details = codecache.FxGraphCachePickler, autograd_cache.AOTAutogradCacheDetails
    lines, sources = getattr(pickler, "debug_lines", None), getattr(details, "get_triton_source_codes_from_gm", None)
    kernels = getattr(triton, "triton_ops_to_kernels", None)
    if lines is None or sources is None or kernels is None:
        # Another version of torch, whose keys are as they are.
        yield
        return
    is_read = autograd_cache.log.isEnabledFor(logging.DEBUG)
    pickler.debug_lines = lambda self, found: lines(self, found) if is_read else []
    details.get_triton_source_codes_from_gm = lambda self, gm: sources(self, gm) if kernels else []
    try:
        yield
    finally:
        pickler.debug_lines, details.get_triton_source_codes_from_gm = lines, sources


@functools.cache
def _system_without_triton() -> dict[str, Any]:
    """What torch's keys say of the system, less a hash of Triton's files."""
    from torch._inductor.codecache import CacheBase
    from torch._inductor.runtime import triton_compat

    before = triton_compat.HAS_TRITON
    triton_compat.HAS_TRITON = False
    try:
        # Without the cache of the function, where TorchInductor finds its own.
        return CacheBase.__dict__["get_system"].__func__.__wrapped__()
    finally:
        triton_compat.HAS_TRITON = before


@contextlib.contextmanager
def without_triton():
    """torch's keys contain a hash of all of Triton's files, which takes a third of a second and says nothing of this backend."""
    from torch._inductor.codecache import CacheBase

    original = CacheBase.__dict__.get("get_system")
    try:
        system = _system_without_triton()
    except (AttributeError, ImportError, KeyError):
        # Another version of torch, whose keys are as they are.
        yield
        return
    CacheBase.get_system = staticmethod(lambda: system)
    try:
        yield
    finally:
        CacheBase.get_system = original


def source_key(folder: str) -> bytes:
    """Which Python files a package has: their paths, sizes and times. A changed file has another time, so they need not be read."""
    found = hashlib.sha256(f"{torch.__version__} {torch.version.git_version}".encode())
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    found.update(entry.path.encode())
                    # An editor's link to nothing has a name alone.
                    with contextlib.suppress(OSError):
                        about = entry.stat()
                        found.update(f" {about.st_size} {about.st_mtime_ns}\n".encode())
    return found.digest()


@functools.cache
def _torch_key() -> bytes:
    return source_key(os.path.dirname(torch.__file__))


@contextlib.contextmanager
def without_reading_torch():
    """torch's keys contain a hash of all of its sources, which takes a fifth of a second; here those of what the file system says of them."""
    from torch._inductor import codecache

    original = getattr(codecache, "torch_key", None)
    if original is None:
        # Another version of torch, whose keys are as they are.
        yield
        return
    codecache.torch_key = _torch_key
    try:
        yield
    finally:
        codecache.torch_key = original


@contextlib.contextmanager
def settings(options: Options):
    """torch's settings while a graph is looked up or compiled."""
    with (
        without_inductors_backends(),
        without_triton(),
        without_lists_of_keys(),
        without_reading_torch(),
        torch._inductor.config.patch(post_grad_custom_pre_pass=Key(options), fx_graph_cache=True),
        # An entry is made when the last of its graphs is compiled: the backward is compiled here, not at its first call.
        torch._functorch.config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
    ):
        yield
