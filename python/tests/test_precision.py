"""torch's flags for float32 as the option ``tf32``. Needs no device: what is compiled for CUDA is only asked for."""

import subprocess
import sys

import pytest
import torch

from ferroflux import _native, precision, runner
from ferroflux.options import backends

from .conftest import same

# A process of its own for each, because flags that were set once cannot be unset.
FLAGS = {
    "": "convolutions",
    "torch.set_float32_matmul_precision('high')": "on",
    "torch.set_float32_matmul_precision('medium')": "on",
    "torch.set_float32_matmul_precision('highest')": "convolutions",
    "torch.backends.cuda.matmul.allow_tf32 = True": "on",
    "torch.backends.cudnn.allow_tf32 = False": "off",
    "torch.backends.cudnn.allow_tf32 = False; torch.set_float32_matmul_precision('high')": "products",
}
NEW_FLAGS = {
    "b.cuda.matmul.fp32_precision = 'tf32'": "on",
    "b.cuda.matmul.fp32_precision = 'ieee'": "convolutions",
    "b.cudnn.conv.fp32_precision = 'ieee'": "off",
    "b.cudnn.conv.fp32_precision = 'ieee'; b.cuda.matmul.fp32_precision = 'tf32'": "products",
    "b.cuda.matmul.allow_tf32 = True; b.cuda.matmul.fp32_precision = 'ieee'": "convolutions",
    "b.cudnn.allow_tf32 = False; b.cudnn.conv.fp32_precision = 'tf32'": "convolutions",
}


def in_a_process(setting):
    program = f"import torch\nb = torch.backends\n{setting}\nfrom ferroflux import precision\nprint(precision.wanted())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("setting", FLAGS)
def test_old_flags(setting):
    assert in_a_process(setting) == FLAGS[setting]


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="this torch has the old flags alone")
@pytest.mark.parametrize("setting", NEW_FLAGS)
def test_new_flags_even_where_old_ones_cannot_be_read_any_more(setting):
    assert in_a_process(setting) == NEW_FLAGS[setting]


def test_the_backend_takes_what_the_flags_say():
    choices = {o["name"]: o["kind"] for o in backends()["cuda"]["options"]}["tf32"]["choice"]
    assert {*FLAGS.values(), *NEW_FLAGS.values()} == set(choices)


@pytest.fixture
def asked(monkeypatch):
    """Compiles as for CUDA, by the backend of the host; the options that ``tf32`` was asked with, in order."""
    found, code = [], _native.Callable

    def compile(source, places, backend, mode, settings, *more):
        found.append(dict(settings).get("tf32"))
        plain = [(name, value) for name, value in settings if name != "tf32"]
        return code(source, places, "cpu", mode, plain, *more)

    class Native:
        Callable = staticmethod(compile)
        __getattr__ = staticmethod(lambda name: getattr(_native, name))

    monkeypatch.setattr(runner, "_native", Native())
    monkeypatch.setattr(runner.Options, "backend_of", lambda options, device: "cuda")
    return found


def compiled(function, **options):
    return torch.compile(function, backend="ferroflux", options={"fallback": "error", "cache": False, **options})


def test_code_is_compiled_once_for_each_answer_of_the_flags(asked, monkeypatch):
    flags = {"conv": True, "matmul": False}
    monkeypatch.setattr(precision, "is_allowed", flags.__getitem__)
    f, x = compiled(lambda x: x @ x), torch.randn(4, 4)
    f(x)
    assert asked == ["convolutions"]
    flags["matmul"] = True
    same(f(x), x @ x)
    f(x)
    assert asked == ["convolutions", "on"]
    flags["matmul"] = False
    f(x)
    assert asked == ["convolutions", "on"]


def test_flags_say_nothing_where_nothing_is_multiplied_or_the_user_chose(asked):
    x = torch.randn(4, 4)
    compiled(lambda x: x.sin())(x)
    assert asked == [None]
    compiled(lambda x: x @ x)(x.double())
    assert asked == [None, None]
    compiled(lambda x: x @ x, tf32="off")(x)
    assert asked == [None, None, "off"]


def test_gradients_follow_the_flags(asked):
    net, x = torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    compiled(net)(x).sum().backward()
    assert asked == [precision.wanted()] * 2
