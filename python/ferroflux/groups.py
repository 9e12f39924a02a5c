"""Exchanges between processes within compiled code: on the communicators of torch's process groups, where these can be had.

A process group over NCCL has one for its device once it has exchanged something, and compiled code calls NCCL with it in the order of the
program. Groups over other libraries (gloo), and exchanges that the operator table lacks, are torch's (``segments``). Compiled code asks no
other process for anything when it is made: processes may compile at different times.
"""

from __future__ import annotations

import functools
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


@dataclass(frozen=True)
class Group:
    """A process group whose communicator compiled code uses."""

    name: str
    backend: Any
    device: torch.device
    native: int
    """The address of its communicator (``ncclComm_t``)."""

    @staticmethod
    def named(name: str, device: torch.device) -> Group | None:
        """``None`` where it has no communicator that can be had."""
        try:
            backend = torch._C._distributed_c10d._resolve_process_group(name)._get_backend(device)
        except (RuntimeError, AttributeError):
            return None
        native = communicator(backend, device)
        return Group(name, backend, device, native) if native else None

    def is_there(self) -> bool:
        """Whether the communicator is still that of the group, which the program may have ended."""
        return communicator(self.backend, self.device) == self.native


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
    return value.device.type == "cuda" and by_name(node) is not None


def of(exchanges: list[Node]) -> list[Group] | None:
    """The groups of a graph's exchanges; ``None`` where torch has to make one of them."""
    found: dict[str, Group | None] = {}

    def by_name(node: Node) -> Group | None:
        name = named_group(node)
        if name not in found:
            found[name] = Group.named(name, node.meta["val"].device)
        return found[name]

    if all(is_taken(node, by_name) for node in exchanges):
        return [group for group in found.values() if group is not None]
    return None


def in_graph(gm: GraphModule) -> list[Group]:
    """The groups on which the compiled code of a graph exchanges."""
    from .segments import is_exchange

    return of([node for node in gm.graph.nodes if node.op == "call_function" and is_exchange(node)]) or []


class Exchanging:
    """Compiled code that exchanges on process groups, which the program may end."""

    _boxed_call = True

    def __init__(self, groups: list[Group], call: Callable[[list], list]):
        self.groups = groups
        self.call: Callable[[list], list] | None = call
        release_before_groups_end()
        LIVING.add(self)

    def __call__(self, args: list) -> list:
        ended = next((group for group in self.groups if not group.is_there()), None)
        if self.call is None or ended is not None:
            name = (ended or self.groups[0]).name
            raise RuntimeError(f"ferroflux: the process group `{name}` was ended, which a compiled graph exchanges on")
        return self.call(args)

    def release(self, backends: list[Any] | None) -> None:
        """Frees the code if one of its groups is among these; ``None`` is every group. Work of a device that runs is waited for."""
        if backends is None or any(group.backend in backends for group in self.groups):
            self.call = None


LIVING: weakref.WeakSet[Exchanging] = weakref.WeakSet()


@functools.cache
def release_before_groups_end() -> None:
    """NCCL does not end a communicator that a device graph refers to: from now on the program's compiled code is freed before
    ``torch.distributed.destroy_process_group`` ends its groups."""
    import torch.distributed as dist

    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def release_and_destroy(group: Any = None) -> None:
        everything = group is None or group is dist.group.WORLD
        backends = None if everything else [group._get_backend(device) for device in group._device_types]
        for code in list(LIVING):
            code.release(backends)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        destroy(group)

    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = release_and_destroy
