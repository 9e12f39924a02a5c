"""Exchanges between processes within compiled code: on the communicators of torch's process groups, where these can be had.

A process group over NCCL has one for its device once it has exchanged something, and compiled code calls NCCL with it in the order of the
program. Groups over other libraries (gloo), and exchanges that the operator table lacks, are torch's (``segments``). Compiled code asks no
other process for anything when it is made: processes may compile at different times.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import weakref
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.fx import GraphModule, Node

EXCHANGES = {
    f"_c10d_functional.{name}.default"
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")
}
WAIT = "_c10d_functional.wait_tensor.default"
# What NCCL combines, by the names of torch's reductions.
REDUCTIONS = {"sum", "avg", "product", "max", "min"}
REDUCED = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64}


# Namespaces of operators that exchange data with other processes.
NAMESPACES = {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem", "_dtensor"}


@functools.cache
def has_shared_nccl() -> bool:
    """Whether torch's NCCL is a shared library, which the process has once, and not a part of torch."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    try:
        return ctypes.CDLL(library)["ncclCommCount"] is not None
    except (OSError, AttributeError):
        return False


@dataclass(frozen=True)
class Group:
    """A process group whose communicator compiled code uses."""

    name: str
    backend: Any
    device: torch.device
    native: int
    """The address of its communicator (``ncclComm_t``)."""
    rank: int
    size: int

    @staticmethod
    def named(name: str, device: torch.device) -> Group | None:
        """``None`` where it has no communicator that can be had."""
        try:
            backend = torch._C._distributed_c10d._resolve_process_group(name)._get_backend(device)
        except (RuntimeError, AttributeError):
            return None
        native = communicator(backend, device) if has_shared_nccl() else 0
        return Group(name, backend, device, native, backend.rank(), backend.size()) if native else None

    def is_there(self) -> bool:
        """Whether the communicator is still that of the group, which the program may have ended."""
        return communicator(self.backend, self.device) == self.native

    def renewed(self) -> Group | None:
        """The group of this name now, where it has the same ranks in number."""
        other = Group.named(self.name, self.device)
        return other if other is not None and (other.rank, other.size) == (self.rank, self.size) else None


def communicator(backend: Any, device: torch.device) -> int:
    """The address of a process group's communicator for a device; 0 where it has none."""
    if not hasattr(backend, "_comm_ptr"):
        return 0
    try:
        if torch.cuda.current_device() == device.index:
            return backend._comm_ptr()
        with torch.cuda.device(device):
            return backend._comm_ptr()
    except RuntimeError:
        # It was ended, by the program or because a process is gone.
        return 0


def named_group(node: Node) -> str:
    """The name of the group of an exchange, which is its last argument."""
    return str(node.args[-1])


def is_exchange(node: Node) -> bool:
    """Whether a node exchanges data with other processes, or waits for that."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in NAMESPACES


def is_taken(node: Node, by_name: Callable[[Node], Any]) -> bool:
    """Whether compiled code makes an exchange, or waits for one of its own."""
    if str(node.target) == WAIT:
        source = node.args[0]
        return isinstance(source, Node) and str(source.target) in EXCHANGES
    if str(node.target) not in EXCHANGES or node.kwargs:
        return False
    value = node.meta["val"]
    if "reduce" in str(node.target) and (value.dtype not in REDUCED or str(node.args[1]).lower() not in REDUCTIONS):
        return False
    # Complex numbers would be two exchanges, which a process that leaves them to torch does not make.
    return value.device.type == "cuda" and not value.is_complex() and by_name(node) is not None


def exchanges_of(gm: GraphModule) -> list[Node]:
    """The exchanges and waits of a graph, without those of graphs within it."""
    return [node for node in gm.graph.nodes if node.op == "call_function" and is_exchange(node)]


def holders_of(gm: GraphModule) -> list[Node]:
    """The nodes of a graph whose own graphs (branches, loops, regions) exchange."""
    found = []
    for node in gm.graph.nodes:
        inner = [getattr(gm, str(a.target), None) for a in node.all_input_nodes if a.op == "get_attr"]
        graphs = [module for g in inner if isinstance(g, GraphModule) for module in g.modules()]
        if any(isinstance(g, GraphModule) and exchanges_of(g) for g in graphs):
            found.append(node)
    return found


def of(gm: GraphModule) -> list[Group] | None:
    """The groups on which the compiled code of a graph exchanges; ``None`` where torch has to make one of the exchanges."""
    found: dict[str, Group | None] = {}

    def by_name(node: Node) -> Group | None:
        name = named_group(node)
        if name not in found:
            found[name] = Group.named(name, node.meta["val"].device)
        return found[name]

    if holders_of(gm) or not all(is_taken(node, by_name) for node in exchanges_of(gm)):
        return None
    return [group for group in found.values() if group is not None]


class Exchanging:
    """Compiled code that exchanges on process groups, which the program may end and make again."""

    _boxed_call = True

    def __init__(self, groups: list[Group], make: Callable[[list[Group]], Callable[[list], list]]):
        self.groups, self.make = groups, make
        self.call: Callable[[list], list] | None = make(groups)
        release_before_groups_end()
        LIVING.add(self)

    def __call__(self, args: list) -> list:
        call = self.call
        if call is None or not all(group.is_there() for group in self.groups):
            call = self._made_again()
        return call(args)

    def _made_again(self) -> Callable[[list], list]:
        renewed = [group.renewed() for group in self.groups]
        if missing := [old.name for old, new in zip(self.groups, renewed) if new is None]:
            raise RuntimeError(f"ferroflux: the process group `{missing[0]}` was ended, which a compiled graph exchanges on")
        self.groups = renewed
        self.call = self.make(renewed)
        return self.call

    def release(self, backends: list[Any]) -> bool:
        """Frees the code if one of its groups is among these; whether it did."""
        if self.call is None or not any(group.backend in backends for group in self.groups):
            return False
        self.call = None
        return True


LIVING: weakref.WeakSet[Exchanging] = weakref.WeakSet()


@functools.cache
def release_before_groups_end() -> None:
    """NCCL does not end a communicator that a device graph refers to: from now on the program's compiled code is freed before a process
    group ends its communicators."""
    kind = torch.distributed.ProcessGroup

    def releasing(original: Callable) -> Callable:
        @functools.wraps(original)
        def ended(group: Any, *args: Any, **keywords: Any) -> Any:
            backends = [group._get_backend(device) for device in group._device_types]
            if any([code.release(backends) for code in list(LIVING)]):
                # Functions around compiled code are in cycles with what they name.
                gc.collect()
                torch.cuda.synchronize()
            return original(group, *args, **keywords)

        return ended

    for name in ("shutdown", "abort"):
        setattr(kind, name, releasing(getattr(kind, name)))
