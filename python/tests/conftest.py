"""Settings of all tests: torch's caches empty before each, and no operator left to torch unless a test says so."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield


@pytest.fixture
def compiled():
    """Compiles with errors instead of what torch would run."""

    def compile(function, **keywords):
        options = {"fallback": "error", **keywords.pop("options", {})}
        return torch.compile(function, backend="ferroflux", options=options, **keywords)

    return compile


def same(ours, eager, tolerance=1e-5):
    """Values, dtypes, sizes and strides of eager PyTorch."""
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=tolerance, check_stride=True, equal_nan=True)
