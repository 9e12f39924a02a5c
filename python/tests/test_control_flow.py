"""Branches and loops are compiled as subgraphs."""

import torch
from torch._higher_order_ops import cond, while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as over_rows
from torch._higher_order_ops.scan import scan

from .conftest import same


def branches(x):
    return cond(x.sum() > 0, lambda x: x.sin() @ x.t(), lambda x: x.cos() @ x.t() + 1, (x,))


def test_branches(compiled):
    g = compiled(branches)
    for sign in (1, -1):
        x = sign * torch.rand(4, 3)
        same(g(x), branches(x))


def test_gradients_of_branches(compiled):
    g = compiled(branches)
    for sign in (1, -1):
        x = sign * torch.rand(4, 3)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        g(a).pow(2).sum().backward()
        branches(b).pow(2).sum().backward()
        same(a.grad, b.grad, 1e-4)


def test_branches_within_branches(compiled):
    def f(x, y):
        inner = lambda x, y: cond(y.sum() > 0, lambda x, y: x * y, lambda x, y: x - y, (x, y))
        return cond(x.sum() > 0, inner, lambda x, y: x + y, (x, y))

    g = compiled(f)
    for a in (1, -1):
        for b in (1, -1):
            x, y = a * torch.rand(3), b * torch.rand(3)
            same(g(x, y), f(x, y))


def test_branches_with_sizes_that_change(compiled):
    g = compiled(branches, dynamic=True)
    for n in (2, 5, 7):
        x = torch.randn(n, 3)
        same(g(x), branches(x))


def test_loops(compiled):
    def f(n, x):
        test = lambda i, x: i < n
        return while_loop(test, lambda i, x: (i + 1, x * 2 + i), (torch.zeros((), dtype=torch.int64), x))

    g, x = compiled(f), torch.randn(4)
    for n in (0, 1, 6):
        for ours, eager in zip(g(torch.tensor(n), x), f(torch.tensor(n), x)):
            same(ours, eager)


def test_scans(compiled):
    def f(x, w):
        step = lambda c, y: ((c @ w + y).tanh(), (c * y).sum())
        return scan(step, torch.zeros(3), x)

    g, x, w = compiled(f), torch.randn(5, 3), torch.randn(3, 3)
    for ours, eager in zip(g(x, w), f(x, w)):
        same(ours, eager)


def test_gradients_of_scans(compiled):
    def f(x):
        c, y = scan(lambda c, y: (c * 0.5 + y, (c * y).sin()), torch.ones(3), x)
        return c.sum() + y.pow(2).sum()

    x = torch.randn(5, 3)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(f)(a).backward()
    f(b).backward()
    same(a.grad, b.grad, 1e-4)


def test_maps(compiled):
    f = lambda x, w: over_rows(lambda row, w: (row * w).softmax(-1), x, w)
    x, w = torch.randn(6, 4), torch.randn(4)
    same(compiled(f)(x, w), f(x, w))


def test_associative_scans(compiled):
    f = lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")
    x = torch.randn(6, 4)
    same(compiled(f)(x), f(x))


def test_what_branches_have_that_is_not_supported_runs_all_the_same():
    f = lambda x: cond(x.sum() > 0, lambda x: torch.histogramdd(x, 2)[0], lambda x: torch.zeros(2, 2), (x,))
    g = torch.compile(f, backend="ferroflux")
    for sign in (1, -1):
        x = sign * torch.rand(5, 2)
        same(g(x), f(x))
