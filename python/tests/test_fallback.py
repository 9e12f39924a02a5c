"""What is not supported is run by torch; options say what is wrong with them."""

import warnings

import pytest
import torch

import ferroflux
from ferroflux.fallback import FallbackWarning

from .conftest import same


@torch.library.custom_op("ferroflux_tests::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


square.register_fake(lambda x: torch.empty_like(x))


@torch.library.custom_op("ferroflux_tests::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    x.mul_(2)


def test_a_custom_operator_between_supported_ones():
    f = lambda x: (square(x + 1) * 2).relu() + x.sin()
    x = torch.randn(5)
    with pytest.warns(FallbackWarning, match="square"):
        ours = torch.compile(f, backend="ferroflux")(x)
    same(ours, f(x))


def test_a_custom_operator_that_mutates():
    def f(x):
        y = x + 1
        double_(y)
        return y * 3

    x = torch.randn(5)
    same(torch.compile(f, backend="ferroflux")(x), f(x))


def test_mutation_around_what_torch_runs():
    def f(x):
        y = x.clone() + 1
        x.mul_(2)
        z = square(x)
        x.add_(z)
        return y + z

    a = torch.randn(4)
    b = a.clone()
    same(torch.compile(f, backend="ferroflux")(a), f(b))
    same(a, b)


def test_fallback_can_be_an_error():
    g = torch.compile(lambda x: square(x) + 1, backend="ferroflux", options={"fallback": "error"})
    with pytest.raises(Exception, match="square"):
        g(torch.randn(3))


def test_random_numbers_of_eager_pytorch():
    def f(x):
        y = torch.rand_like(x) + x.sin()
        z = torch.nn.functional.dropout(y * 2, 0.3)
        return z + torch.randint_like(x, 1, 11), torch.randn(3).relu()

    g = torch.compile(f, backend="ferroflux", options={"random": "torch"})
    x = torch.randn(4, 5)
    for seed in (1, 2):
        torch.manual_seed(seed)
        ours = g(x)
        torch.manual_seed(seed)
        same(ours, f(x))


def test_branches():
    f = lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))
    g = torch.compile(f, backend="ferroflux")
    for x in (torch.ones(3), -torch.ones(3)):
        same(g(x), f(x))


def test_sparse_tensors():
    f = lambda s, x: torch.sparse.mm(s, x) + 1
    s, x = torch.eye(3).to_sparse(), torch.randn(3, 2)
    same(torch.compile(f, backend="ferroflux")(s, x), f(s, x))


def test_nested_tensors():
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    ours = torch.compile(lambda x: x * 2, backend="ferroflux")(nested)
    same(ours.values(), nested.values() * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "cpuu"}, "did you mean `cpu`"),
        ({"fallbck": "error"}, "did you mean `fallback`"),
        ({"fallback": "maybe"}, "`torch` or `error`"),
        ({"freeze": 1}, "True or False"),
        ({"random": "mine"}, "`own` or `torch`"),
    ],
)
def test_wrong_options_say_what_is_right(options, message):
    with pytest.raises(Exception, match=message):
        torch.compile(lambda x: x + 1, backend="ferroflux", options=options)(torch.ones(2))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_torch(mode):
    assert torch.compile(lambda x: x + 1, backend="ferroflux", mode=mode)(torch.ones(2)).tolist() == [2, 2]


def test_options_of_the_backend():
    g = torch.compile(lambda x: x + 1, backend="ferroflux", options={"backend": "cpu", "threads": 1})
    assert g(torch.ones(2)).tolist() == [2, 2]


def test_backends_are_listed():
    names = {b["name"]: b for b in ferroflux.list_backends()}
    assert names["cpu"]["unavailable_because"] is None
    assert "ferroflux" in torch._dynamo.list_backends()


def test_explain():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = ferroflux.explain(lambda x: square(x.sin()) + x.cos(), torch.ones(3))
    text = str(report)
    assert "kernels" in text and "square" in text
    assert "<table>" in report._repr_html_()


def test_an_interpreter_as_backend():
    f = lambda x: (x + 1).relu()
    x = torch.randn(3)
    same(torch.compile(f, backend="ferroflux", options={"backend": "eager", "fallback": "error"})(x), f(x))


def test_sizes_that_the_compiled_code_refuses_are_torchs():
    def f(x, pads):
        return torch.ops.aten.reflection_pad1d_backward(x.sin(), x[:, : x.size(1) - pads[0] - pads[1]], pads)

    g = torch.compile(f, backend="ferroflux", dynamic=True)
    x = torch.randn(2, 9)
    for pads in ([1, 2], [2, 1]):
        same(g(x, pads), f(x, pads))
    with pytest.warns(FallbackWarning, match="the compiled code refuses"):
        same(g(x, [3, -1]), f(x, [3, -1]))
    same(g(x, [1, 2]), f(x, [1, 2]))


def test_refused_calls_of_a_graph_that_mutates():
    def f(x, y):
        x.add_(1)
        # What it has beyond the elements of `y` has no value.
        return torch.ops.aten.resize(y, [x.size(0), x.size(0)]).flatten()[:4] + x.sum()

    g = torch.compile(f, backend="ferroflux", dynamic=True)
    for n in (2, 3):
        a, y = torch.zeros(n), torch.arange(4.0)
        b = a.clone()
        same(g(a, y), f(b, y))
        same(a, b)


def test_errors_of_data_are_those_of_torch():
    f = torch.compile(lambda x, i: x[i] + 1, backend="ferroflux")
    x = torch.randn(4)
    same(f(x, torch.tensor([0, 3])), x[[0, 3]] + 1)
    with pytest.raises(IndexError):
        f(x, torch.tensor([0, 4]))
    same(f(x, torch.tensor([1, 2])), x[[1, 2]] + 1)
