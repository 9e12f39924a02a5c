"""Results are torch's own tensors: resized, pickled and kept like those of eager PyTorch."""

import gc
import pickle

import torch

from .conftest import same


def test_results_can_be_resized(compiled):
    f = lambda x: (x + 1, x.sum(0), (x @ x.t()).softmax(-1))
    g, x = compiled(f), torch.randn(6, 4)
    for ours, eager in zip(g(x), f(x)):
        same(ours, eager)
        assert ours.untyped_storage().resizable()
        ours.resize_(100)
        assert ours.shape == (100,)


def test_results_of_changing_sizes(compiled):
    f = lambda x: (x * 2, x.t() + 1, x.sum(), torch.cat([x, x]))
    g = compiled(f, dynamic=True)
    for rows in (2, 5, 3, 64):
        x = torch.randn(rows, 3)
        for ours, eager in zip(g(x), f(x)):
            same(ours, eager)


def test_results_without_elements(compiled):
    f = lambda x: (x * 2, x.sum(0), x[:0])
    for ours, eager in zip(compiled(f)(torch.randn(0, 4)), f(torch.randn(0, 4))):
        same(ours, eager)


def test_results_of_every_kind(compiled):
    def f(x, i):
        return x > 0, x.argmax(-1), x.to(torch.bfloat16), torch.fft.fft(x), x.t().contiguous(), x.nonzero(), i

    x, i = torch.randn(4, 6), torch.arange(3)
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        results = compiled(f)(x, i)
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False
    for ours, eager in zip(results, f(x, i)):
        same(ours, eager, 1e-4)


def test_results_in_other_layouts(compiled):
    conv = torch.nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        same(compiled(conv)(x), conv(x), 1e-4)


def test_a_result_of_one_call_is_left_alone_by_the_next(compiled):
    g = compiled(lambda x: x * 2)
    kept = [(n, g(torch.full((8,), float(n)))) for n in range(20)]
    assert all(bool((y == 2 * n).all()) for n, y in kept)


def test_results_outlive_their_program_and_are_pickled(compiled):
    y = compiled(lambda x: x * 3)(torch.ones(5))
    torch._dynamo.reset()
    gc.collect()
    assert pickle.loads(pickle.dumps(y)).sum() == 15


def test_results_under_inference_mode(compiled):
    g = compiled(lambda x: x.relu())
    with torch.inference_mode():
        y = g(torch.randn(4))
    assert y.is_inference()
    assert not g(torch.randn(4)).is_inference()
