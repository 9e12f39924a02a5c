"""What graphs of a device compute on the host: on fake tensors of a CUDA device, for which no device is needed."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ferroflux import host_constants


@pytest.fixture
def kept_here(monkeypatch):
    """Constants stay where a machine without a device can hold them."""
    kept = []
    monkeypatch.setattr(host_constants, "_moved", lambda value, home: kept.append(value) or value)
    return kept


def graph_of(function, *sizes, device="cuda"):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        tensors = [torch.empty(size, device=device) for size in sizes]
        return make_fx(function)(*tensors)


def on_host(gm):
    """The operators that compute tensors with dimensions on the host."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    return [str(n.target) for n in calls if n.meta["val"].device.type == "cpu" and n.meta["val"].dim()]


def table(x):
    rows = torch.arange(4)[:, None] - torch.arange(4)[None, :] + 3
    return x[rows.long()] * 2


def test_a_table_of_positions_is_computed_once(kept_here):
    gm = graph_of(table, (7, 8))
    assert on_host(gm)
    host_constants.fold(gm)
    assert not on_host(gm), gm.graph
    (kept,) = kept_here
    assert torch.equal(kept, torch.arange(4)[:, None] - torch.arange(4)[None, :] + 3)
    x = torch.randn(7, 8)
    assert torch.equal(gm(x), table(x))


def test_a_graph_of_the_host_stays(kept_here):
    gm = graph_of(table, (7, 8), device="cpu")
    before = str(gm.graph)
    host_constants.fold(gm)
    assert str(gm.graph) == before and not kept_here


def test_random_numbers_and_results_of_the_host_stay(kept_here):
    def function(x):
        noise = torch.randint(0, 7, (4,))
        return x[noise], torch.arange(3) + 1

    gm = graph_of(function, (7, 8))
    before = on_host(gm)
    host_constants.fold(gm)
    assert on_host(gm) == before and not kept_here


def test_numbers_stay(kept_here):
    gm = graph_of(lambda x: x * torch.full((), 3.0), (7, 8))
    host_constants.fold(gm)
    assert not kept_here
