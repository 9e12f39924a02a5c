"""Graphs on devices by their numbers, and on several at once: on fake tensors of CUDA devices, for which no device is needed."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ferroflux import _native, fallback, options, runner

# Without CUDA torch takes any number of a fake tensor's device.
two_devices = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="torch sees one CUDA device"
)


def graph_of(function, *devices):
    with FakeTensorMode(allow_non_fake_inputs=True):
        return make_fx(function)(*(torch.empty(3, 4, device=d) for d in devices))


@two_devices
def test_devices_have_the_names_of_backends():
    assert runner.device_of(graph_of(lambda x: x + 1, "cuda:0")) == "cuda"
    assert runner.device_of(graph_of(lambda x: x + 1, "cuda:1")) == "cuda:1"
    assert runner.device_of(graph_of(lambda x: x + 1, "cpu")) == "cpu"


def test_a_backend_of_a_name_follows_the_number_of_the_tensors():
    assert options.Options().backend_of("cuda:1") == "cuda:1"
    assert options.Options(backend="cuda").backend_of("cuda:1") == "cuda:1"
    assert options.Options(backend="cuda").backend_of("cuda") == "cuda"
    assert options.Options(backend="./npu.so").backend_of("cuda:1") == "./npu.so"
    assert options.Options(backend="rocm").backend_of("cuda:1") == "rocm:1"
    assert options.Options(backend="cuda:0").backend_of("cuda") == "cuda:0"
    for named in ("cuda:0", "rocm:2"):
        with pytest.raises(_native.Unsupported, match="cuda:1, and the backend is"):
            options.Options(backend=named).backend_of("cuda:1")


def test_names_with_numbers_are_checked_as_others():
    assert options.parse(None, {"backend": "cpu:0", "threads": 1}).backend == "cpu:0"
    with pytest.raises(ValueError, match="did you mean `cpu`"):
        options.parse(None, {"backend": "cpx:0"})
    with pytest.raises(ValueError, match="no device of that number: one of 0"):
        options.parse(None, {"backend": "cpu:7"})
    with pytest.raises(ValueError, match="there is no backend `cpu:²`"):
        options.parse(None, {"backend": "cpu:²"})
    first = torch.compile(lambda x: x + 1, backend="ferroflux", options={"backend": "cpu:0", "fallback": "error"})
    assert first(torch.ones(2)).tolist() == [2.0, 2.0]


def on_two(x, y):
    x = (x * 2).relu()
    y = (y - 1).exp()
    return x.sum(), (x.to("cuda:1") + y).cos()


@two_devices
def test_what_most_of_a_graph_is_not_on_is_named():
    with pytest.raises(_native.Unsupported, match="cuda and cuda:1") as caught:
        runner.device_of(graph_of(on_two, "cuda:0", "cuda:1"))
    assert {why for _, _, why in caught.value.args[1]} == {runner.OTHER_DEVICE}


@two_devices
def test_each_part_of_a_graph_is_on_one_device():
    gm = graph_of(on_two, "cuda:0", "cuda:1")
    parts = fallback.partitioned(gm, set(), options.Options())
    found = {name: runner.device_of(part) for name, part in parts.named_children()}
    assert sorted(found.values()) == ["cuda", "cuda:1"]
    # The copy between the two is torch's.
    left = [str(n.target) for n in parts.graph.nodes if n.op == "call_function" and "getitem" not in str(n.target)]
    assert left == ["aten._to_copy.default"]
