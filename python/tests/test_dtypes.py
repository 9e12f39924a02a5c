"""Dtypes that kernels do not have: unsigned integers above 8 bits, 8-bit floats, and tensors seen as another dtype.

Expected values are eager PyTorch's.
"""

import pytest
import torch

UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2]


def agrees(f, *inputs):
    fast = torch.compile(f, backend="ferroflux", options={"fallback": "error"})
    expected, got = f(*inputs), fast(*inputs)
    assert got.dtype == expected.dtype
    same = (got.view(torch.uint8), expected.view(torch.uint8)) if expected.dtype in FLOATS else (got, expected)
    assert torch.equal(*same)


def numbers(dtype):
    top = 2 ** (8 * dtype.itemsize) - 1
    return torch.tensor([0, 1, 7, top // 2, top // 2 + 1, top - 1, top], dtype=dtype)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_integers(dtype):
    x = numbers(dtype)
    agrees(lambda x: x * 3, x)
    agrees(lambda x: x & x.flip(0), x)
    agrees(lambda x: x == x.flip(0), x)
    agrees(lambda x: x.sum(), x)
    agrees(lambda x: x.cumsum(0), x)
    agrees(lambda x: x / 3, x)
    agrees(lambda x: x.to(torch.float64), x)
    agrees(lambda x: x.float(), x)
    agrees(lambda x: x.to(torch.int64)[torch.tensor([2, 0])], x)
    agrees(lambda x: torch.cat([x, x[::2]]), x)
    agrees(lambda x: x.to(dtype), torch.tensor([0.0, 1.9, 250.0, 60000.0]))
    agrees(lambda x: torch.where(x == 7, x, x.flip(0)), x)


def test_a_mutated_unsigned_tensor_is_written():
    def f(x):
        x.mul_(5)
        return x.to(torch.int64)

    a, b = numbers(torch.uint32), numbers(torch.uint32)
    expected, got = f(a), torch.compile(f, backend="ferroflux", options={"fallback": "error"})(b)
    assert torch.equal(got, expected) and torch.equal(a, b)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_of_8_bits(dtype):
    x = torch.cat([torch.randn(1000) * 2.0**e for e in range(-12, 12, 3)])
    agrees(lambda x: x.to(dtype), x)
    agrees(lambda x: x.to(dtype), x.bfloat16())
    eight = x.to(dtype)
    agrees(lambda x: x.float(), eight)
    agrees(lambda x: x.to(torch.bfloat16), eight)
    agrees(lambda x: x.flip(0), eight)
    agrees(lambda x: x[torch.tensor([5, 7])], eight)
    agrees(lambda x: torch.cat([x, x]), eight)


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_scaled_products(out_dtype):
    x, w = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(48, 32).to(torch.float8_e4m3fn)
    one = [torch.tensor(0.5), torch.tensor(0.25)]

    def f(x, w, a, b):
        return torch._scaled_mm(x, w.t(), scale_a=a, scale_b=b, out_dtype=out_dtype)

    fast = torch.compile(f, backend="ferroflux", options={"fallback": "error"})
    # The scales are powers of two, so the sum alone is rounded, and then the result.
    exact = (x.double() @ w.double().t() * 0.125).to(torch.float32)
    got = fast(x, w, *one)
    assert got.dtype == out_dtype
    unit = torch.finfo(out_dtype).eps
    torch.testing.assert_close(got.float(), exact, rtol=unit, atol=1e-5 if unit < 1e-2 else 2.0**-9)


def test_bits_as_another_dtype():
    x = torch.randn(4, 6)
    agrees(lambda x: x.view(torch.int32), x)
    agrees(lambda x: x.view(torch.uint8), x)
    agrees(lambda x: x.view(torch.bfloat16).float().nan_to_num(), x)
    agrees(lambda x: x.view(torch.int64), x)
    agrees(lambda x: x.view(torch.float32), torch.randint(0, 255, (3, 8), dtype=torch.uint8))
    agrees(lambda z: z.view(torch.float32), torch.randn(3, 5, dtype=torch.complex64))
