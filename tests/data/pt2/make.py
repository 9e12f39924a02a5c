"""Writes the golden archives beside this file, with PyTorch 2.11 on a CPU: `python make.py`.

Small programs, each for one part of the format. Stack traces are removed, because they name the machine's paths.
"""

import pathlib

import torch
from torch.export import Dim, export, save
from torch.export.experimental import _export_forward_backward
from torch.export.pt2_archive._package import package_pt2

HERE = pathlib.Path(__file__).parent
nn = torch.nn


def strip(program):
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def write(name, program):
    save(strip(program), str(HERE / f"{name}.pt2"))


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


if __name__ == "__main__":
    torch.manual_seed(0)
    write("weights", export(Weights(), (torch.tensor([1, 2]),)))
    write("modes", export(Modes(), (torch.randn(3, 4),)))
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
