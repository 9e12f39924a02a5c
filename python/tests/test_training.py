"""Gradients, optimizers, mixed precision and random numbers in training."""

import copy

import torch
import torch.nn.functional as F

from .conftest import same


def net():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    )


def test_steps_of_a_network(compiled):
    ours = net()
    eager = copy.deepcopy(ours)
    loss = lambda m: lambda x, y: F.cross_entropy(m(x), y)
    step = compiled(loss(ours))
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (ours, eager)]
    for _ in range(5):
        x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))
        for optimizer, f in zip(optimizers, (step, loss(eager))):
            optimizer.zero_grad()
            f(x, y).backward()
            optimizer.step()
    for a, b in zip(ours.state_dict().values(), eager.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_whole_step_with_its_optimizer(compiled):
    ours = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    eager = copy.deepcopy(ours)

    def step_of(model):
        optimizer = torch.optim.AdamW(model.parameters(), 0.05)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    ours_step, eager_step = compiled(step_of(ours)), step_of(eager)
    for _ in range(5):
        x, y = torch.randn(16, 4), torch.randn(16, 1)
        same(ours_step(x, y), eager_step(x, y), 1e-4)
    for a, b in zip(ours.parameters(), eager.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_an_optimizer_alone(compiled):
    ours = [torch.randn(4, 3, requires_grad=True) for _ in range(3)]
    eager = [p.detach().clone().requires_grad_() for p in ours]
    for p in ours + eager:
        p.grad = torch.ones_like(p)
    a, b = torch.optim.AdamW(ours, 0.1), torch.optim.AdamW(eager, 0.1)
    step = compiled(a.step)
    for _ in range(4):
        step()
        b.step()
    for p, q in zip(ours, eager):
        same(p.detach(), q.detach())


def test_autocast(compiled):
    layer = torch.nn.Linear(16, 16)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x).float().pow(2).sum()

    x = torch.randn(4, 16)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, eager = compiled(f)(a), f(b)
    ours.backward()
    eager.backward()
    torch.testing.assert_close(ours, eager, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(a.grad, b.grad, rtol=5e-2, atol=5e-2)


def test_running_statistics(compiled):
    ours = torch.nn.BatchNorm1d(4)
    eager = copy.deepcopy(ours)
    x = torch.randn(8, 4)
    same(compiled(ours)(x), eager(x), 1e-4)
    same(ours.running_var, eager.running_var)
    assert int(ours.num_batches_tracked) == 1


def test_dropout_has_one_mask_for_both_directions(compiled):
    g = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, requires_grad=True)
    y = g(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 300 < int((y == 0).sum()) < 700
    assert not torch.equal(g(x), g(x))


def test_manual_seed_repeats(compiled):
    g, x = compiled(torch.rand_like), torch.ones(8)
    torch.manual_seed(1)
    a = g(x)
    torch.manual_seed(1)
    assert torch.equal(a, g(x))
    assert not torch.equal(a, g(x))


def test_checkpoints(compiled):
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(4, 4)
    f = lambda x: checkpoint(lambda y: torch.sin(layer(torch.cos(y))), x, use_reentrant=False).sum()
    x = torch.randn(2, 4)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(f)(a).backward()
    f(b).backward()
    same(a.grad, b.grad)


def test_attention(compiled):
    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).pow(2).sum()

    ours = [torch.randn(2, 3, 8, 16, requires_grad=True) for _ in range(3)]
    eager = [t.detach().clone().requires_grad_() for t in ours]
    compiled(f)(*ours).backward()
    f(*eager).backward()
    for a, b in zip(ours, eager):
        same(a.grad, b.grad, 1e-4)


def test_double_backward_is_refused_as_by_aot_autograd(compiled):
    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(compiled(lambda x: (x**3).sum())(x), x, create_graph=True)
    try:
        g.sum().backward()
    except RuntimeError as e:
        assert "double backward" in str(e)
    else:
        raise AssertionError("no error")


class Images(torch.nn.Module):
    """Convolutions with all that may be done to their results, one of which the user sees."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.last = torch.nn.Linear(8 * 16, 4)

    def forward(self, x):
        seen = torch.relu(self.norm(self.first(x)))
        y = torch.relu(self.second(seen) + seen)
        y = torch.nn.functional.max_pool2d(y, 2).sigmoid()
        return self.last(y.flatten(1)), seen


def test_kept_results_of_convolutions_have_their_channels_innermost(compiled, monkeypatch):
    from ferroflux import layouts, runner

    monkeypatch.setattr(layouts, "DEVICES", {"cpu"})
    texts = []
    monkeypatch.setattr(runner, "LISTENERS", [lambda text, code: texts.append(text)])
    ours, x = Images(), torch.randn(2, 3, 8, 8)
    eager = copy.deepcopy(ours)
    f = compiled(ours)
    for _ in range(2):
        results = []
        for model in (f, eager):
            y, seen = model(x)
            (y.square().sum() + seen.sum()).backward()
            results.append((y, seen))
        same(*results, 1e-4)
    for (name, p), q in zip(ours.named_parameters(), eager.parameters()):
        same(p.grad, q.grad, 1e-3)
    forward, backward = texts
    # Row-major strides are 512, 64, 8, 1.
    inner = "f32[2, 8, 8, 8]{512, 1, 64, 8}"
    kept = [line for line in backward.splitlines() if inner in line and "input" in line]
    assert kept and inner in forward


def test_layouts_by_strides_stay(compiled, monkeypatch):
    from ferroflux import layouts

    monkeypatch.setattr(layouts, "DEVICES", {"cpu"})
    w, v = torch.randn(4, 3, 3, 3, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    f = lambda x, w: torch.as_strided(torch.nn.functional.conv2d(x, w).sin(), (2, 16), (64, 1), 3).exp()
    x = torch.randn(2, 3, 6, 6)
    v.data.copy_(w.data)
    a, b = compiled(f)(x, w), f(x, v)
    a.sum().backward()
    b.sum().backward()
    same(a, b)
    same(w.grad, v.grad, 1e-3)
