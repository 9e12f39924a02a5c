"""What a forward graph keeps for its backward graph."""

import torch
import torch.nn.functional as F

from ferroflux import partition


UNKEPT = {"cache": False}
"""Graphs that an earlier run left are not partitioned."""


def kept(monkeypatch):
    """The shapes of what forward graphs return, by the graph."""
    shapes, real = [], partition.partition

    def watched(joint, inputs, **keywords):
        forward, backward = real(joint, inputs, **keywords)
        results = forward.graph.find_nodes(op="output")[0].args[0]
        shapes.append([tuple(node.meta["val"].shape) for node in results if isinstance(node.meta["val"], torch.Tensor)])
        return forward, backward

    monkeypatch.setattr(partition, "partition", watched)
    return shapes


def attend(q, k, v, shown):
    """Causal attention among positions of the same document, where `shown` has a truth value for each key."""
    n = torch.arange(q.size(-2))
    documents = torch.cumsum((n % 5 == 0).long(), 0)
    mask = (n[:, None] >= n[None]) & (documents[:, None] == documents[None]) & shown[:, None, None]
    mask = torch.where(mask | torch.eye(len(n), dtype=torch.bool), 0.0, -1e30)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_masks_are_computed_again(compiled, monkeypatch):
    shapes = kept(monkeypatch)
    q, k, v = (torch.randn(2, 3, 24, 8, requires_grad=True) for _ in range(3))
    shown = torch.rand(2, 24) > 0.2
    results = []
    for f in (attend, compiled(attend, options=UNKEPT)):
        out = f(q, k, v, shown)
        results.append((out, *torch.autograd.grad(out.pow(2).sum(), (q, k, v))))
    for ours, true in zip(results[1], results[0]):
        torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-4)
    assert len(shapes) == 1 and all(shape[-2:] != (24, 24) for shape in shapes[0])


def test_random_masks_are_kept(compiled, monkeypatch):
    shapes = kept(monkeypatch)
    x = torch.randn(16, 16, requires_grad=True)

    def f(x):
        y = x * (torch.rand(16, 16) > 0.5)
        return y, y.sin()

    y, z = compiled(f, options=UNKEPT)(x)
    (found,) = torch.autograd.grad(y.sum() + z.sum(), x)
    chosen = (y != 0).float()
    torch.testing.assert_close(found, chosen + chosen * y.cos())
    assert (16, 16) in shapes[0][2:]


def test_narrow_logits_are_kept_in_place_of_their_softmax(compiled, monkeypatch):
    layer, found = torch.nn.Linear(8, 24), []
    real = partition.partition

    def watched(joint, inputs, **keywords):
        forward, backward = real(joint, inputs, **keywords)
        results = forward.graph.find_nodes(op="output")[0].args[0]
        found.extend(node.meta["val"] for node in results if node.meta["val"].dim() == 2 and node.meta["val"].size(-1) == 24)
        return forward, backward

    monkeypatch.setattr(partition, "partition", watched)
    x, bias, y = torch.randn(5, 8), torch.randn(5, 24), torch.tensor([3, 0, -100, 23, 7])

    def loss(x, bias, y):
        with torch.autocast("cpu", torch.bfloat16):
            logits = layer(x)
            weights = torch.softmax(logits + bias, -1)
        return F.cross_entropy(logits.float(), y) + (weights * weights).sum()

    gradients = []
    for f in (loss, compiled(loss, options=UNKEPT)):
        layer.zero_grad()
        value = f(x, bias, y)
        value.backward()
        gradients.append((value.detach(), layer.weight.grad.clone(), layer.bias.grad.clone()))
    for ours, true in zip(gradients[1], gradients[0]):
        torch.testing.assert_close(ours, true, rtol=2e-2, atol=1e-2)
    # The logits and, of what is as large in float32, the bias alone.
    assert sorted(str(value.dtype) for value in found) == ["torch.bfloat16", "torch.float32"]


def test_masks_that_are_added_are_computed_again_from_truth_values(compiled, monkeypatch):
    shapes = kept(monkeypatch)
    q, k, v = (torch.randn(1, 2, 12, 8, requires_grad=True) for _ in range(3))
    shown = (torch.rand(1, 1, 12, 12) > 0.3) | torch.eye(12, dtype=torch.bool)

    def f(q, k, v, shown):
        return F.scaled_dot_product_attention(q, k, v, torch.zeros(()).masked_fill(~shown, -torch.inf))

    results = []
    for g in (f, compiled(f, options=UNKEPT)):
        out = g(q, k, v, shown)
        results.append((out, *torch.autograd.grad(out.pow(2).sum(), (q, k, v))))
    for ours, true in zip(results[1], results[0]):
        torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-4)
    # The truth values, and nothing else of this size.
    assert len(shapes) == 1 and sum(shape[-2:] == (12, 12) for shape in shapes[0]) == 1


def test_what_reads_an_input_before_it_is_written_is_kept(compiled):
    def f(x, c):
        w = c.float()
        c.logical_not_()
        return x * w * x

    x, c = torch.randn(6, requires_grad=True), torch.tensor([True, False, True, True, False, False])
    (found,) = torch.autograd.grad(compiled(f, options=UNKEPT)(x, c.clone()).sum(), x)
    torch.testing.assert_close(found, 2 * x.detach() * c)


def test_empty_tensors_that_other_operators_give_are_kept(compiled):
    words, bags = torch.zeros(0, dtype=torch.long), torch.zeros(3, dtype=torch.long)
    table = torch.randn(4, 2, requires_grad=True)
    f = compiled(lambda words, table, bags: F.embedding_bag(words, table, bags, mode="sum"))
    out = f(words, table, bags)
    assert torch.equal(out, torch.zeros(3, 2))
    (found,) = torch.autograd.grad(out.sum(), table)
    assert torch.equal(found, torch.zeros(4, 2))


def test_what_is_computed_from_a_written_buffer_is_kept(compiled):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.tensor([5]))

        def forward(self, q):
            shown = torch.arange(24)[None] < self.seen[:, None]
            self.seen += 9
            return F.scaled_dot_product_attention(q, q.sin(), q.cos(), attn_mask=torch.where(shown, 0.0, -1e9).expand(1, 1, 24, 24))

    q = torch.randn(1, 2, 24, 8, requires_grad=True)
    found = []
    for make in (lambda module: module, compiled):
        module = Counting()
        found.append(torch.autograd.grad(make(module)(q).pow(2).sum(), q)[0])
        assert module.seen.item() == 14
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_sizes_are_kept_as_numbers(compiled, monkeypatch):
    shapes = kept(monkeypatch)

    def f(x, w):
        h = x @ w
        c = torch.cat([h, h])
        return c.view(c.shape[0] // 2, -1).sum(1)

    x, w = torch.randn(6, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    compiled(f, dynamic=True, options=UNKEPT)(x, w).sum().backward()
    assert all(len(shape) < 2 or shape[0] != 12 for shape in shapes[0][1:]), shapes
