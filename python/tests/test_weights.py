"""Weights are bound in inference, and every change of them is seen."""

import copy

import torch

from .conftest import same


def check(g, m, x):
    with torch.no_grad():
        same(g(x), m(x))


def test_changes_of_weights_are_seen(compiled):
    m = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    g, x = compiled(m), torch.randn(3, 8)
    check(g, m, x)
    with torch.no_grad():
        m[0].weight.add_(1)
    check(g, m, x)
    m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()})
    check(g, m, x)
    m[2].bias.data = torch.ones(4)
    check(g, m, x)
    for _ in range(20):
        with torch.no_grad():
            m[0].weight.mul_(0.9)
        check(g, m, x)
        check(g, m, x)


def test_training_and_evaluation_in_turn(compiled):
    m = torch.nn.Linear(4, 2)
    g, x = compiled(m), torch.randn(3, 4)
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(6):
        check(g, m, x)
        optimizer.zero_grad()
        g(x).sum().backward()
        optimizer.step()


def test_modules_that_share_their_code(compiled):
    layers = [torch.nn.Linear(8, 8) for _ in range(5)]
    one = [compiled(copy.deepcopy(m)) for m in layers]
    x = torch.randn(2, 8)
    for _ in range(3):
        for g, m in zip(one, layers):
            check(g, m, x)


def test_inference_mode(compiled):
    m = torch.nn.Linear(4, 2)
    g, x = compiled(m), torch.randn(3, 4)
    with torch.inference_mode():
        for _ in range(3):
            same(g(x), m(x))


def test_buffers_that_change(compiled):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(3))
            self.register_buffer("scale", torch.ones(3))

        def forward(self, x):
            self.n.add_(1)
            return x * self.n * self.scale

    ours, eager = Counter(), Counter()
    g = compiled(ours)
    for i in range(4):
        with torch.no_grad():
            ours.scale.fill_(i)
            eager.scale.fill_(i)
            same(g(torch.ones(3)), eager(torch.ones(3)))
    same(ours.n, eager.n)
