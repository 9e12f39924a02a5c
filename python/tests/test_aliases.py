"""Results that share memory, and inputs that are written: as in eager PyTorch."""

import pytest
import torch

from .conftest import same


def test_an_input_is_written_in_place(compiled):
    def f(x):
        x.mul_(2)
        return x + 1

    a, b = torch.ones(4), torch.ones(4)
    at = a.data_ptr()
    same(compiled(f)(a), f(b))
    same(a, b)
    assert a.data_ptr() == at


def test_an_input_with_gaps_is_written_in_place(compiled):
    def f(x):
        x.add_(1)
        return x * 2

    whole, other = torch.zeros(4, 6), torch.zeros(4, 6)
    same(compiled(f)(whole[:, ::2]), f(other[:, ::2]))
    same(whole, other)


def test_a_transposed_input_is_written_in_place(compiled):
    def f(x):
        x.add_(torch.arange(6.0).view(2, 3))

    a, b = torch.zeros(3, 2), torch.zeros(3, 2)
    compiled(f)(a.t())
    f(b.t())
    same(a, b)


def test_a_view_of_an_input_shares_its_memory(compiled):
    a = torch.randn(2, 3)
    view, _ = compiled(lambda x: (x.t(), x + 1))(a)
    view[0, 0] = 7
    assert a[0, 0] == 7 and view.stride() == (1, 3)


def test_a_view_of_a_result_shares_its_memory(compiled):
    def f(x):
        y = x + 1
        return y, y.view(-1)

    whole, flat = compiled(f)(torch.randn(2, 3))
    whole[0, 0] = 7
    assert flat[0] == 7


def test_a_part_of_a_result_shares_its_memory(compiled):
    def f(x):
        y = x + 1
        return y[:, 1:], y

    x = torch.randn(2, 3)
    part, whole = compiled(f)(x)
    whole[0, 1] = 7
    assert part[0, 0] == 7
    assert part.stride() == (3, 1)


def test_an_expanded_result_keeps_its_strides(compiled):
    f = lambda x: (x + 1).expand(4, 3)
    x = torch.randn(1, 3)
    same(compiled(f)(x), f(x))


def test_one_result_twice_is_one_tensor(compiled):
    def f(x):
        y = x + 1
        return y, y

    a, b = compiled(f)(torch.randn(2, 3))
    assert a is b


def test_an_input_is_returned_as_it_is(compiled):
    a = torch.randn(3)
    assert compiled(lambda x: (x, x * 2))(a)[0] is a


def test_inputs_that_overlap(compiled):
    def f(x, y):
        x.add_(1)
        return x + y

    a, b = torch.zeros(6), torch.zeros(6)
    same(compiled(f)(a[:4], a[2:]), f(b[:4], b[2:]))
    same(a, b)


def test_results_outlive_their_inputs(compiled):
    g = compiled(lambda x: x + 1)
    kept = [g(torch.full((1000,), float(i))) for i in range(50)]
    assert all(bool((v == i + 1).all()) for i, v in enumerate(kept))


@pytest.mark.parametrize("cut", [(slice(1, 33),), (slice(None, None, 3),)])
def test_inputs_at_an_offset_and_with_steps(compiled, cut):
    f = lambda x: x * 2 + 1
    x = torch.randn(100)[cut]
    same(compiled(f)(x), f(x))


def test_other_strides_at_a_second_call(compiled):
    f = lambda x: x * 2 + 1
    g, a = compiled(f), torch.randn(4, 5)
    same(g(a), f(a))
    same(g(a.t()), f(a.t()))


def test_an_input_with_a_lazy_conjugate(compiled):
    f = lambda x: x * 2
    x = torch.randn(4, dtype=torch.complex64).conj()
    same(compiled(f)(x), f(x).resolve_conj())


def test_a_complex_input_is_written(compiled):
    def f(x):
        x.mul_(2j)

    a = torch.randn(3, dtype=torch.complex64)
    b = a.clone()
    compiled(f)(a)
    f(b)
    same(a, b)


def test_a_buffer_written_with_other_strides(compiled):
    def f(x, y):
        x.copy_(y.t())
        return x.sum()

    a, b, y = torch.zeros(3, 4), torch.zeros(3, 4), torch.randn(4, 3)
    same(compiled(f)(a, y), f(b, y))
    same(a, b)
