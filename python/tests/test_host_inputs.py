"""Arguments of the host in graphs of a device: on fake tensors of a CUDA device, for which no device is needed."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ferroflux import host_inputs, runner


def graph_of(function):
    with FakeTensorMode(allow_non_fake_inputs=True):
        return make_fx(function)(torch.empty(3, 4, device="cuda"), torch.empty(4, dtype=torch.float64))


def on_host(gm):
    """What lies on the host, but for arguments that are only moved."""
    tensors = [n for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return [n.name for n in tensors if n.meta["val"].device.type == "cpu" and not host_inputs.is_only_moved(n)]


def moved(function):
    gm = graph_of(function)
    host_inputs.move_first(gm)
    return gm


def test_what_is_moved_is_computed_on_the_device():
    def function(x, table):
        return x + table.to(torch.float32).detach().clone().to("cuda"), x * table.to("cuda", torch.float32)

    gm = moved(function)
    assert not on_host(gm), gm.graph
    assert runner.device_of(gm) == "cuda"
    # torch, which may run the graph or parts of it, finds the move.
    assert sum(host_inputs.is_move(node) for node in gm.graph.nodes) == 1


def test_what_is_only_moved_is_an_argument_of_the_device():
    assert not on_host(moved(lambda x, table: x + table.to("cuda", torch.float32)))


def test_what_the_host_reads_too_stays():
    stay = [
        lambda x, table: (x + table.sin().to("cuda"), table * 2),
        lambda x, table: (x + table.to("cuda"), table),
        lambda x, table: (x + table.to("cuda"), table.add_(1)),
        lambda x, table: x + table[:2].to("cuda").sum(),
    ]
    for function in stay:
        before, gm = on_host(graph_of(function)), moved(function)
        assert on_host(gm) == before, gm.graph


def test_what_two_arguments_of_the_host_give_stays():
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = (torch.empty(4, device="cuda"), torch.empty(4), torch.empty(4))
        gm = make_fx(lambda x, a, b: x + (a + b).to("cuda"))(*given)
    before = on_host(gm)
    host_inputs.move_first(gm)
    assert on_host(gm) == before


def test_page_locked_memory_is_copied_before_the_call():
    gm = moved(lambda x, table: x + table.to("cuda", torch.float32))
    text = runner.Text(gm, set())
    results = runner.Results(gm, text)
    text.convert(results.returned)
    body = runner._body(gm, text, results)
    assert "args[1] = pageable(args[1])" in body and "args[0] = pageable" not in body
