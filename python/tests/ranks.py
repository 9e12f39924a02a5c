"""What two processes run for ``test_distributed``: one case, compiled and by eager PyTorch, which have to agree.

    python -m torch.distributed.run --standalone --nproc-per-node 2 ranks.py CASE [cuda]
"""

import datetime
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as exchange
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ferroflux import runner
from ferroflux.fallback import FallbackWarning

STEPS = 4
compiled_graphs = []
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"


class Block(nn.Module):
    """TorchDynamo captures what is not torch's own module where it is called by one, as the wrappers here do."""

    def __init__(self, inner, outer):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(inner, outer), nn.Linear(outer, outer - 1), nn.LayerNorm(outer - 1)

    def forward(self, x):
        return self.norm(nn.functional.gelu(self.second(self.first(x).relu())))


class Layers(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList([Block(32, width), Block(width - 1, 32)])
        self.last = nn.Linear(31, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def layers(width=64):
    torch.manual_seed(0)
    return Layers(width).to(DEVICE)


def ddp(width=64, **keywords):
    return nn.parallel.DistributedDataParallel(layers(width), **keywords)


def fully_sharded(**keywords):
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    model = layers()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **keywords)
    return fully_shard(model, mesh=mesh, **keywords)


def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 10)).to(DEVICE)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh(DEVICE, (dist.get_world_size(),)), plan)


def sequence_parallel():
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    torch.manual_seed(0)
    layers = [nn.LayerNorm(32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32), nn.LayerNorm(32)]
    model = nn.Sequential(*layers).to(DEVICE)
    plan = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0)),
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Shard(0)),
        "4": SequenceParallel(sequence_dim=0),
    }
    model = parallelize_module(model, init_device_mesh(DEVICE, (dist.get_world_size(),)), plan)
    return nn.Sequential(model, Whole(), nn.Linear(32, 10).to(DEVICE))


class Whole(nn.Module):
    """The whole of a distributed tensor, as an ordinary one."""

    def forward(self, x):
        return x.full_tensor()


def training(make, same_data=False, whole=False):
    """Losses and weights of some steps, compiled and by eager PyTorch; ``whole`` compiles the backward with its exchanges,
    which hooks start otherwise."""
    found = []
    for backend in ("eager", "ferroflux"):
        torch._dynamo.reset()
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

        def step(x, y, call=model if whole or backend == "eager" else torch.compile(model, backend=backend)):
            loss = nn.functional.cross_entropy(call(x), y)
            loss.backward()
            return loss.detach()

        run = torch.compile(step, backend=backend) if whole and backend != "eager" else step
        losses = []
        for n in range(STEPS):
            torch.manual_seed(n + (0 if same_data else 100 * dist.get_rank()))
            losses.append(run(torch.randn(16, 32).to(DEVICE), torch.randint(0, 10, (16,)).to(DEVICE)))
            optimizer.step()
            optimizer.zero_grad()
        local = lambda p: p.to_local() if hasattr(p, "to_local") else p
        found.append([torch.stack(losses), *(local(p.detach()).clone() for p in model.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def captured_backward():
    with torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True):
        training(ddp, whole=True)


def calls(function, *inputs):
    """Results of a function of tensors, compiled and by eager PyTorch."""
    compiled = torch.compile(function, backend="ferroflux", fullgraph=True)
    for given in inputs:
        given = [t.to(DEVICE) for t in given]
        ours = [t.clone() for t in given]
        torch.testing.assert_close(compiled(*ours), function(*given))
        torch.testing.assert_close(ours, list(given))


def collectives():
    group = dist.group.WORLD

    def function(x, total):
        summed = exchange.all_reduce(x * 2, "sum", group)
        gathered = exchange.all_gather_tensor(x.sin(), 0, group)
        scattered = exchange.reduce_scatter_tensor(gathered.exp(), "sum", 0, group)
        swapped = exchange.all_to_all_single(gathered + 1, None, None, group)
        first = exchange.broadcast(x.cos(), 0, group)
        total.add_(summed)
        return summed.relu() - scattered, swapped * 2, first + total

    sizes = [(6, 3), (6, 3), (8, 3), (10, 5)]
    calls(function, *((torch.randn(s) + dist.get_rank(), torch.ones(s)) for s in sizes))


@torch.library.custom_op("ferroflux_tests::squared", mutates_args=())
def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


squared.register_fake(lambda x: torch.empty_like(x))


def unlike_ranks():
    """Ranks with unlike ways to two exchanges that do not depend on each other: only the order of the program fits."""
    group, rank = dist.group.WORLD, dist.get_rank()

    def function(x, y):
        if rank == 0:
            x = squared(squared(x + 1) * 2) - 1
        else:
            y = squared(squared(y + 1) * 2) - 1
        first = exchange.all_reduce(x, "sum", group)
        second = exchange.all_gather_tensor(y, 0, group)
        return first.relu() + 1, second * 2

    calls(function, *[(torch.randn(4, 4), torch.randn(2, 4)) for _ in range(3)])


def unlike_graphs():
    """The same of ranks whose graphs are compiled as a whole: one computes more before the first exchange, another before the second."""
    group, rank = dist.group.WORLD, dist.get_rank()

    def function(x, y):
        for _ in range(3):
            x, y = (x @ x.T / 8).tanh() @ x if rank == 0 else x, (y @ y.T / 8).tanh() @ y if rank == 1 else y
        first = exchange.all_reduce(x, "sum", group)
        second = exchange.all_gather_tensor(y, 0, group)
        third = exchange.all_reduce(y, "max", group)
        return first.relu() + 1, second * 2, third - x[:2]

    calls(function, *[(torch.randn(4, 4), torch.randn(2, 4)) for _ in range(3)])


def ended_group():
    """A call after its group was ended is an error, whatever its communicator's memory has become."""
    group = dist.new_group([0, 1])
    function = torch.compile(lambda x: exchange.all_reduce(x * 2, "sum", group) + 1, backend="ferroflux", fullgraph=True)
    x = torch.ones(8, device=DEVICE)
    dist.barrier(group=group)
    assert function(x).tolist() == [5.0] * 8
    dist.destroy_process_group(group)
    # Who is no member of a group ends nothing.
    dist.destroy_process_group(dist.GroupMember.NON_GROUP_MEMBER)
    try:
        function(x)
    except RuntimeError as e:
        assert "was ended" in str(e), e
    else:
        raise AssertionError("a call on a group that was ended")


def recorded():
    """Exchanges within device graphs, with results that are held."""
    group = dist.group.WORLD
    function = lambda x: (exchange.all_reduce(x.sin() @ x.T, "sum", group).relu() * 2)[1:]
    compiled = torch.compile(function, backend="ferroflux", fullgraph=True, mode="reduce-overhead")
    held = []
    for n in range(8):
        torch.manual_seed(10 * n + dist.get_rank())
        x = torch.randn(8, 8).to(DEVICE)
        held.append((compiled(x), function(x)))
    for ours, eager in held:
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


CASES = {
    "ddp": lambda: training(ddp),
    "ddp_in_buckets": lambda: training(lambda: ddp(600, bucket_cap_mb=1)),
    "ddp_captured_backward": captured_backward,
    "fully_shard": lambda: training(fully_sharded),
    "tensor_parallel": lambda: training(tensor_parallel, same_data=True),
    "sequence_parallel": lambda: training(sequence_parallel, same_data=True),
    "collectives": collectives,
    "unlike_ranks": unlike_ranks,
    "unlike_graphs": unlike_graphs,
    "ended_group": ended_group,
    "recorded": recorded,
}


def main(case):
    torch.set_num_threads(1)
    runner.LISTENERS.append(lambda text, code: compiled_graphs.append(text))
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.backends.cudnn.allow_tf32 = False
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", timeout=datetime.timedelta(seconds=60))
    # NCCL has a communicator from the first exchange on.
    dist.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CASES[case]()
    named = [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]
    print(f"rank {dist.get_rank()}: {len(compiled_graphs)} graphs; {' '.join(named)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
