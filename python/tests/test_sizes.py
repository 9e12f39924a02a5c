"""Symbolic sizes: one program for many sizes, integers in and out."""

import pytest
import torch
import torch.nn.functional as F

from .conftest import same


def test_one_program_for_many_sizes(compiled):
    f = lambda x: F.softmax(x @ x.t(), -1).sum(0) * x.shape[0]
    g = compiled(f, dynamic=True)
    for n in (3, 7, 12, 30):
        x = torch.randn(n, 5)
        same(g(x), f(x), 1e-4)


def test_random_sizes(compiled):
    def f(x, y):
        return torch.cat([x, y], 1).relu().sum(1, keepdim=True) + x[:, :1], x.shape[0] * 2 + y.shape[1]

    g = compiled(f, dynamic=True)
    sizes = torch.randint(2, 40, (60, 3))
    for a, b, c in sizes.tolist():
        x, y = torch.randn(a, b), torch.randn(a, c)
        (ours, number), (eager, expected) = g(x, y), f(x, y)
        same(ours, eager, 1e-4)
        assert number == expected


def test_an_integer_that_becomes_dynamic(compiled):
    f = lambda x, n: x.view(n, -1).sum(1) + n
    g = compiled(f)
    for n in (2, 3, 4, 6, 12):
        x = torch.randn(24)
        same(g(x, n), f(x, n))


def test_an_integer_that_no_size_gives(compiled):
    f = lambda x, n: x * n + n
    g = compiled(f, dynamic=True)
    for n in (2, 3, 5, 9):
        x = torch.randn(4)
        same(g(x, n), f(x, n))


def test_an_integer_that_makes_a_size(compiled):
    f = lambda x, n: torch.cat([x, torch.ones(n)]).sum() + torch.arange(n).sum()
    g = compiled(f, dynamic=True)
    for n in (2, 3, 50, 100_000):
        x = torch.randn(4)
        same(g(x, n), f(x, n), 1e-1)


def test_a_negative_integer(compiled):
    f = lambda x, n: x * n
    g = compiled(f, dynamic=True)
    for n in (2, 5, -3, -7):
        x = torch.randn(4)
        same(g(x, n), f(x, n))


def test_a_float(compiled):
    g = compiled(lambda x, s: x * s)
    for s in (0.5, 0.7, 0.9):
        same(g(torch.ones(3), s), torch.ones(3) * s)


def test_a_size_is_returned(compiled):
    g = compiled(lambda x: (x + 1, x.shape[0] * 2), dynamic=True)
    assert [g(torch.ones(n))[1] for n in (5, 7)] == [10, 14]


@pytest.mark.parametrize("n", [0, 1, 10])
def test_sizes_that_data_decides(compiled, n):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        f = lambda x: (x > 0).nonzero() * 2
        x = torch.cat([torch.rand(n) + 1, -torch.rand(4)])
        # Eager PyTorch's result is stored by columns, which its own tracing does not know.
        torch.testing.assert_close(compiled(f)(x), f(x))


def test_an_item(compiled):
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        f = lambda x, n: x * n.item()
        for n in (3, 8):
            same(compiled(f)(torch.ones(4), torch.tensor(n)), torch.ones(4) * n)


def test_no_elements(compiled):
    f = lambda x: (x.sum(0), x * 2)
    x = torch.randn(0, 3)
    for a, b in zip(compiled(f)(x), f(x)):
        same(a, b)


def test_a_written_input_of_any_size(compiled):
    def f(x):
        x.mul_(3)

    g = compiled(f, dynamic=True)
    for n in (3, 8, 21):
        a, b = torch.ones(n, 2), torch.ones(n, 2)
        g(a)
        f(b)
        same(a, b)


def test_training_of_any_size(compiled):
    layer = torch.nn.Linear(5, 3)
    f = lambda x: layer(x).relu().sum()
    g = compiled(f, dynamic=True)
    for n in (3, 8, 21):
        x = torch.randn(n, 5)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        g(a).backward()
        f(b).backward()
        same(a.grad, b.grad)
