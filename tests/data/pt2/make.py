"""Writes the golden archives beside this file, with PyTorch 2.11 and safetensors on a CPU: `python make.py`.

Small programs, each for one part of the format. Stack traces are removed, because they name the machine's paths.
"""

import pathlib
import zipfile

import torch
from safetensors.torch import save_file
from torch.export import Dim, export, save
from torch.export.experimental import _export_forward_backward
from torch.export.pt2_archive._package import package_pt2

HERE = pathlib.Path(__file__).parent
# Names of inputs whose values samples hold.
INPUTS = ["x", "y", "k", "m", "j", "s"]
nn = torch.nn


def strip(program):
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def write(name, program):
    save(strip(program), str(HERE / f"{name}.pt2"))


def deflate(path):
    """The archive compressed, without the inputs of the capture: PyTorch wants their record and takes an empty one."""
    with zipfile.ZipFile(path) as archive:
        entries = [(name, b"" if "sample_inputs" in name else archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)


class Weights(nn.Module):
    """Shared, strided, empty, not persistent and constant weights."""

    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 4)
        self.o = nn.Linear(4, 10, bias=False)
        self.o.weight = self.e.weight
        self.register_buffer("big", torch.arange(24.0))
        self.register_buffer("view", self.big.view(4, 6).t()[1:, ::2])
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("low", torch.ones(3, dtype=torch.bfloat16))
        self.constant = torch.tensor([1.0, 2.0])

    def forward(self, i):
        self.count.add_(1)
        rest = self.view.sum() + self.big.sum() + self.constant.sum() + self.empty.sum() + self.low.sum()
        return {"y": self.o(self.e(i)) + rest * float("inf"), "n": self.count + 0}


class Modes(nn.Module):
    """Regions of autocast and without gradient."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.l(x)
            e = torch.einsum("ij,kj->ik", x, x)
            p = y.prod()
        with torch.no_grad():
            z = y * 2
        return z.float() + x, e, p


class Regions(torch.nn.Module):
    """A region for GPUs, captured on a machine without one: its results are recorded in float32."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 8)
        self.b = torch.nn.Linear(8, 2)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = self.a(x).relu()
            with torch.autocast("cuda", enabled=False):
                z = y.float().softmax(-1)
        return self.b(z)


class Sizes(nn.Module):
    """Expressions of sizes."""

    def forward(self, x, y):
        longest = torch.arange(max(x.shape[0], y.shape[0]))
        pooled = torch.nn.functional.max_pool2d(x[None, None], 3, 2)
        half = y.reshape(y.shape[0] // 2, 2, -1)
        filled = torch.full((x.shape[0],), x.shape[0] * 1.5)
        third = x[: (x.shape[0] + 1) // 3]
        return x.view(-1), longest, pooled, half, filled, third, x.shape[0] * 2 + 1


class Items(nn.Module):
    """Sizes and numbers that only the data gives, with their assertions."""

    def forward(self, x, n):
        k = n.item()
        torch._check(k >= 2)
        torch._check(k <= 10)
        return x.new_zeros(k, 3), torch.full((3,), x.sum().item()), x.nonzero()


class Loops(nn.Module):
    """Subgraphs."""

    def forward(self, x):
        def more(i, x):
            return i < 5

        def step(i, x):
            return i + 1, x * 2

        i, y = torch._higher_order_ops.while_loop(more, step, (torch.zeros((), dtype=torch.int64), x))
        return i, torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))


class Nested(nn.Module):
    """Nested, constant and written arguments."""

    def forward(self, x, d, flag=True, name="a", none=None):
        x.mul_(2)
        return x + d["a"], d["b"][0] if flag else None


class Loss(nn.Module):
    """A loss with its backward graph."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 3)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.l(x), y)


class Number(nn.Module):
    """An integer that is only computed with, in expressions of every kind; numbers are returned."""

    def forward(self, x, k):
        i = x.to(torch.int64)
        parts = x / (k * 0.5 + 1) + k // 3 + k % 5 - torch.sym_max(k, 4)
        return x * k + k, i * k, i * (k * 0.5), torch.full((2,), k), parts, k, k + 1


class NumberSizes(nn.Module):
    """Integers that are sizes: of a part, of a new tensor, of both with the size of an input."""

    def forward(self, x, k, j):
        torch._check(j >= 1)
        return x.narrow(0, 0, k) * j, torch.arange(k + j), x.new_ones(x.shape[1], j).sum(1) * k


class NumberAgree(nn.Module):
    """Integers that must agree with a size and with each other."""

    def forward(self, x, y, k, m, j):
        torch._check(x.shape[0] == k)
        torch._check(m == 2 * j)
        torch._check(y.shape[0] == k + j)
        return x * k + m + j, y.sum(0) * j


class Constants(nn.Module):
    """Arguments that exporting specialises on, around an integer that it does not."""

    def forward(self, x, n, k, scale, flag, mode, mask=None):
        y = x * n + k * scale
        y = y * 2 if flag else y
        y = y.sin() if mode == "sine" else y
        return y if mask is None else y * mask


class NumberLoss(nn.Module):
    """A loss over as many samples as an integer says, times another integer."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 3)

    def forward(self, x, k, s):
        return self.l(x).narrow(0, 0, k).pow(2).mean() * s


def write_samples(name, program, samples):
    """Archive, and for each sample the inputs by name (numbers as tensors without dimensions) and what PyTorch gives."""
    write(name, program)
    deflate(HERE / f"{name}.pt2")
    module, tensors = program.module(), {}
    names = [path for path in program.graph_signature.user_inputs]
    for n, sample in enumerate(samples):
        # What exporting specialised on has no name here.
        given = [(name, torch.as_tensor(a)) for name, a in zip(names, sample) if isinstance(name, str) and name in INPUTS]
        tensors |= {f"s{n}.{name}": t.clone() for name, t in given}
        results = module(*sample)
        results = results if isinstance(results, tuple) else (results,)
        tensors |= {f"s{n}.out{k}": torch.as_tensor(r).detach().clone() for k, r in enumerate(results)}
        if module.state_dict():
            results[0].backward()
            for parameter, p in module.named_parameters():
                tensors[f"s{n}.grad:{parameter}"], p.grad = p.grad, None
    save_file(tensors, str(HERE / f"{name}.safetensors"))


def numbers():
    """Programs that take numbers."""
    dynamic, auto = Dim.DYNAMIC, {0: Dim.AUTO}
    x = torch.randn(3, 4)
    program = export(Number(), (x, 3), dynamic_shapes={"x": auto, "k": dynamic})
    samples = [(x, 3), (torch.randn(5, 4), -7), (x, 0), (x, 2**33 + 1)]
    write_samples("number", program, samples)
    shapes = {"x": None, "k": dynamic, "j": dynamic}
    program = export(NumberSizes(), (torch.randn(8, 4), 3, 2), dynamic_shapes=shapes)
    write_samples("number_sizes", program, [(torch.randn(8, 4), k, j) for k, j in [(3, 2), (8, 5), (2, 9)]])
    shapes = {"x": auto, "y": auto, "k": Dim.AUTO, "m": Dim.AUTO, "j": Dim.AUTO}
    args = (x, torch.randn(5, 2), 3, 4, 2)
    program = export(NumberAgree(), args, dynamic_shapes=shapes)
    write_samples("number_agree", program, [args, (torch.randn(6, 4), torch.randn(11, 2), 6, 10, 5)])
    args = (x, 3, 5, 2.5, True, "sine", None)
    shapes = {"x": auto, "n": None, "k": dynamic, "scale": None, "flag": None, "mode": None, "mask": None}
    program = export(Constants(), args, dynamic_shapes=shapes)
    write_samples("constants", program, [args, (torch.randn(2, 4), 3, -2, 2.5, True, "sine", None)])
    shapes = {"x": None, "k": dynamic, "s": dynamic}
    program = export(NumberLoss(), (torch.randn(6, 4), 3, 2), dynamic_shapes=shapes)
    write_samples("number_loss", program, [(torch.randn(6, 4), k, s) for k, s in [(3, 2), (6, -4)]])


if __name__ == "__main__":
    torch.manual_seed(0)
    write("weights", export(Weights(), (torch.tensor([1, 2]),)))
    write("modes", export(Modes(), (torch.randn(3, 4),)))
    write("regions", export(Regions(), (torch.randn(3, 4),), strict=True))
    sizes = {"x": {0: Dim.AUTO(min=4, max=100), 1: Dim.AUTO}, "y": {0: 2 * Dim("t", min=2, max=50)}}
    write("sizes", export(Sizes(), (torch.randn(6, 8), torch.randn(10, 4)), dynamic_shapes=sizes))
    write("items", export(Items(), (torch.randn(3), torch.tensor(4))))
    write("loops", export(Loops(), (torch.randn(3),)))
    args = (torch.randn(3), {"a": torch.ones(3), "b": [torch.zeros(2), 3]})
    nested = export(Nested(), args, kwargs={"flag": True, "name": "q", "none": None})
    write("nested", nested)
    write("nested_aten", nested.run_decompositions({}))
    loss = export(Loss(), (torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))
    write("loss", _export_forward_backward(loss))
    pair = {"a": strip(export(Loss(), (torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))), "b": strip(nested)}
    package_pt2(str(HERE / "two.pt2"), exported_programs=pair)
    numbers()
