"""Programs of many kinds, compared with eager PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from .conftest import same


def test_graph_breaks(compiled):
    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    x = torch.randn(3)
    same(compiled(f)(x), f(x))


def test_a_branch_on_data(compiled):
    f = lambda x: x * 2 if x.sum().item() > 0 else x * 3
    x = torch.randn(3)
    same(compiled(f)(x), f(x))


def test_channels_last_is_kept(compiled):
    m = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    with torch.no_grad():
        same(compiled(m)(x), m(x), 1e-4)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(compiled, dtype):
    f = lambda x: x * x.conj() + 1j
    x = torch.randn(3, dtype=dtype)
    same(compiled(f)(x), f(x))


def test_fourier_transforms(compiled):
    f = lambda x: torch.fft.rfft(x).abs()
    x = torch.randn(16)
    same(compiled(f)(x), f(x), 1e-4)


def test_vmap_of_grad(compiled):
    f = lambda x: torch.func.vmap(torch.func.grad(lambda y: (y.sin() ** 2).sum()))(x)
    x = torch.randn(3, 4)
    same(compiled(f)(x), f(x))


def test_indices(compiled):
    def f(x, i):
        s, k = x.sort(-1)
        return x.index_add(0, i, x[i]) + s, x.topk(2)[0], x.cumsum(0), k

    x, i = torch.randn(4, 5), torch.tensor([0, 2, 2])
    for a, b in zip(compiled(f)(x, i), f(x, i)):
        same(a, b)


def test_lstm(compiled):
    m = torch.nn.LSTM(4, 5, batch_first=True)
    x = torch.randn(2, 6, 4)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        same(compiled(m)(x)[0], m(x)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(compiled, dtype, causal):
    q, k, v = (torch.randn(2, 4, 8, 16, dtype=dtype) for _ in range(3))
    f = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(compiled(f)(q, k, v), f(q, k, v), rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-2 if dtype == torch.bfloat16 else 1e-4)


def test_attention_with_masks(compiled):
    q, k, v = (torch.randn(2, 4, 8, 16) for _ in range(3))
    f = lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m)
    for mask in (torch.randn(2, 1, 8, 8), torch.rand(8, 8) > 0.3):
        same(compiled(f)(q, k, v, mask), f(q, k, v, mask), 1e-4)


def test_integer_powers_wrap(compiled):
    exponents = torch.tensor([-3, 0, 1, 63, 87, 2**32 - 1, 2**32, 2**32 + 1, 5350987433748632719, 2**63 - 1])
    bases = torch.tensor([-9, -5, -2, -1, 0, 1, 2, 3, 7, 2**40 + 1]).unsqueeze(1)
    same(compiled(torch.pow)(bases, exponents), torch.pow(bases, exponents))


@pytest.mark.parametrize("order", [-41.0, 2.0, 3.0, float("inf")])
def test_the_norm_of_one_element_does_not_overflow(compiled, order):
    f = lambda x: torch.linalg.vector_norm(x, order, dim=1)
    x = torch.tensor([[[0.1, -2.0, 1e30, 0.0]], [[3.0, 1e-30, -0.5, float("nan")]]])
    same(compiled(f)(x), f(x))


@pytest.mark.parametrize("pool", [F.adaptive_avg_pool2d, F.adaptive_max_pool2d])
def test_adaptive_pools_of_integers_are_refused(pool):
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        torch.compile(lambda x: pool(x, 2), backend="ferroflux")(torch.ones(1, 1, 4, 4, dtype=torch.int64))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last_3d, torch.preserve_format])
def test_resize_counts_elements_as_they_lie(form):
    def f(x, y):
        small = torch.ops.aten.resize_as(x, y, memory_format=form)
        rest = torch.contiguous_format if form is torch.preserve_format else form
        return small, torch.ops.aten.resize(x, [1, 3, 2, 2, 1], memory_format=rest)

    y = torch.randn(1, 3, 2, 3, 1)
    for template in (y, y.contiguous(memory_format=torch.channels_last_3d)):
        for x in (torch.randn(20), torch.randn(4, 5).t()):
            torch._dynamo.reset()
            for ours, eager in zip(torch.compile(f, backend="ferroflux")(x, template), f(x, template)):
                same(ours, eager)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_functions_outside_of_their_domain(compiled, dtype):
    x = torch.tensor([-910685.8, -8493.9, -1e30, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 1e30], dtype=dtype)
    f = lambda x: (x.acosh(), x.acos(), x.asin(), x.atanh(), x.log(), x.log1p(), x.sqrt(), x.rsqrt())
    for ours, eager in zip(compiled(f)(x), f(x)):
        torch.testing.assert_close(ours, eager, equal_nan=True)
