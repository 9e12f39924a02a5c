"""Threads, forks, errors in the middle of things, and the end of the process."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from .conftest import same


def test_many_threads_call_at_once(compiled):
    f = lambda x: (x @ x).relu() + x.sum(0)
    g, x = compiled(f), torch.randn(64, 64)
    expected, wrong = f(x), []
    g(x)

    def work():
        for _ in range(125):
            if not torch.allclose(g(x), expected, atol=1e-3):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_many_threads_with_weights_that_change(compiled):
    m = torch.nn.Linear(16, 16)
    g, x = compiled(m), torch.randn(4, 16)
    with torch.no_grad():
        g(x)
    errors = []

    def work():
        try:
            with torch.no_grad():
                for _ in range(100):
                    assert g(x).shape == (4, 16)
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    with torch.no_grad():
        for _ in range(10):
            m.weight.add_(0.01)
    [t.join() for t in threads]
    assert not errors
    with torch.no_grad():
        same(g(x), m(x))


def test_an_index_out_of_bounds_is_an_error_and_the_next_call_works(compiled):
    f = lambda x, i: x[i] * 2
    g, x = compiled(f), torch.randn(4)
    with pytest.raises((RuntimeError, IndexError)):
        g(x, torch.tensor([9]))
    same(g(x, torch.tensor([3])), f(x, torch.tensor([3])))


def script(text, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fork_after_use():
    script(
        """
        import os, torch
        g = torch.compile(lambda x: (x @ x).relu(), backend="ferroflux")
        x = torch.randn(128, 128)
        e = g(x)
        pid = os.fork()
        if pid == 0:
            ok = torch.allclose(g(x), e)
            h = torch.compile(lambda x: x.softmax(-1) @ x, backend="ferroflux")
            ok = ok and torch.allclose(h(x), x.softmax(-1) @ x, atol=1e-3)
            os._exit(0 if ok else 3)
        import time
        for _ in range(600):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.1)
        else:
            os.kill(pid, 9)
            raise SystemExit("the child hangs")
        assert os.waitstatus_to_exitcode(status) == 0, status
        assert torch.allclose(g(x), e)
        """
    )


def test_workers_of_a_loader_run_compiled_code():
    script(
        """
        import torch
        g = torch.compile(lambda x: (x @ x).relu().sum(0), backend="ferroflux")
        x = torch.randn(256, 256)
        expected = g(x)
        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return g(x) + i
        loader = torch.utils.data.DataLoader(
            Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=120
        )
        for n, batch in enumerate(loader):
            for k, row in enumerate(batch):
                assert torch.allclose(row, expected + 2 * n + k, atol=1e-3)
            assert torch.allclose(g(x), expected, atol=1e-3)
        assert n == 3
        """
    )


def test_the_end_of_the_process_with_programs_alive():
    """The thread calls the compiled code itself: in TorchDynamo's frames it would crash with torch's own backends too."""
    script(
        """
        import threading, torch
        from ferroflux import runner
        codes = []
        runner.LISTENERS.append(lambda text, code: codes.append(code))
        model, x = torch.nn.Linear(8, 8), torch.randn(2, 8)
        with torch.no_grad():
            kept = torch.compile(lambda x: x.sin() + 1, backend="ferroflux")(x)
            other = torch.compile(model, backend="ferroflux")(x)
        torch.compile(model, backend="ferroflux")(x).sum().backward()
        def forever():
            while True:
                codes[0]([x])
        threading.Thread(target=forever, daemon=True).start()
        """
    )


def test_memory_stays_flat():
    out = script(
        """
        import resource, torch
        g = torch.compile(lambda x: (x * 2).relu(), backend="ferroflux", dynamic=True)
        def now():
            return int(open("/proc/self/statm").read().split()[1]) * 4
        x = torch.randn(1000)
        for _ in range(2000):
            g(x)
        before = now()
        for i in range(10000):
            g(x)
        print(now() - before)
        """
    )
    assert int(out) < 4096, f"{out} KiB more after 10,000 calls"


def test_a_second_process_finds_the_program(tmp_path):
    text = """
        import torch
        from ferroflux import runner
        seen = []
        runner.LISTENERS.append(lambda text, code: seen.append(code.from_cache))
        g = torch.compile(torch.nn.Linear(8, 8), backend="ferroflux")
        torch.manual_seed(0)
        with torch.no_grad():
            g(torch.randn(2, 8))
        print(seen)
        """
    environment = {"FERROFLUX_CACHE": "on", "FERROFLUX_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    assert "False" in script(text, **environment)
    assert "True" in script(text, **environment)


def test_a_second_process_traces_nothing_again(tmp_path):
    text = """
        import torch, warnings
        from torch._dynamo.utils import counters
        layer = torch.nn.Linear(8, 8)
        with torch.no_grad():
            [p.fill_(0.5) for p in layer.parameters()]
        def f(x):
            y = layer(x).relu()
            return y, y.t(), x.view(-1)
        g = torch.compile(f, backend="ferroflux")
        x = torch.ones(2, 8, requires_grad=True)
        y, t, v = g(x)
        (y.sum() + t.sum()).backward()
        assert x.grad.tolist() == [[8.0] * 8] * 2, x.grad
        assert layer.weight.grad.sum() == 256, layer.weight.grad
        assert v.data_ptr() == x.data_ptr() and t.data_ptr() == y.data_ptr()
        print(counters["aot_autograd"]["autograd_cache_hit"])
        """
    environment = {"FERROFLUX_CACHE": "on", "FERROFLUX_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    assert script(text, **environment).strip() == "0"
    assert script(text, **environment).strip() == "1"
    # What torch runs a part of is not kept, and works all the same.
    other = text.replace("layer(x).relu()", "torch.histogramdd(x.detach()[:, :2], 2)[0].sum() * 0 + layer(x).relu()")
    for _ in range(2):
        assert script(other, **environment).strip() == "0"


def test_a_second_process_has_torch_run_what_the_code_refuses(tmp_path):
    text = """
        import torch, warnings
        from torch._dynamo.utils import counters
        warnings.simplefilter("ignore")
        offsets = torch.tensor([0, 1])
        f = torch.compile(lambda x, i: x[i] + offsets, backend="ferroflux")
        x = torch.arange(4)
        assert f(x, torch.tensor([0, 3])).tolist() == [0, 4]
        try:
            f(x, torch.tensor([0, 4]))
        except IndexError:
            print(counters["aot_autograd"]["autograd_cache_hit"])
        """
    environment = {"FERROFLUX_CACHE": "on", "FERROFLUX_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    assert script(text, **environment).strip() == "0"
    assert script(text, **environment).strip() == "1"


def test_a_second_process_may_leave_out_dynamo_too(tmp_path):
    text = """
        import logging
        logging.disable(logging.CRITICAL)
        import torch
        from torch._dynamo.utils import counters
        class Twice(torch.nn.Module):
            def forward(self, x):
                return x.relu() * 2
        g = torch.compile(Twice(), backend="ferroflux")
        with torch.no_grad():
            assert g(torch.ones(3)).tolist() == [2.0] * 3
        print(counters["stats"]["unique_graphs"])
        """
    environment = {"FERROFLUX_CACHE": "on", "FERROFLUX_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    environment["TORCH_CACHING_PRECOMPILE"] = "1"
    assert script(text, **environment).strip() == "1"
    assert script(text, **environment).strip() == "0"


def test_a_changed_source_of_torch_is_another_key_and_torchs_own_is_as_before(tmp_path):
    """Sources are told by what the file system says of them, while a graph of this backend is compiled."""
    from torch._inductor import codecache

    from ferroflux import aot_cache

    folder = tmp_path / "package" / "inner"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("x = 1")
    keys = [aot_cache.source_key(str(tmp_path))]
    assert aot_cache.source_key(str(tmp_path)) == keys[0]
    (folder / "notes.txt").write_text("no source")
    assert aot_cache.source_key(str(tmp_path)) == keys[0]
    (folder / "a.py").write_text("x = 10")
    keys.append(aot_cache.source_key(str(tmp_path)))
    (folder / "b.py").write_text("")
    keys.append(aot_cache.source_key(str(tmp_path)))
    assert len(set(keys)) == 3
    original = codecache.torch_key
    with aot_cache.without_reading_torch():
        assert codecache.torch_key is not original and len(codecache.torch_key()) == 32
    assert codecache.torch_key is original


def test_torchs_own_keys_are_as_before():
    """What torch's keys say of the system has no hash of Triton's files while a graph of this backend is compiled, and has it again
    afterwards: TorchInductor's code depends on them."""
    from torch._inductor.codecache import CacheBase
    from torch._inductor.runtime import triton_compat

    from ferroflux import aot_cache

    original, asked = CacheBase.__dict__["get_system"], []
    before = triton_compat.HAS_TRITON, triton_compat.triton_key
    triton_compat.HAS_TRITON, triton_compat.triton_key = True, lambda: asked.append(1) or "files"
    aot_cache._system_without_triton.cache_clear()
    original.__func__.cache_clear()
    try:
        with aot_cache.without_triton():
            inside = CacheBase.get_system()
        assert not asked and "files" not in str(inside) and "hash" in inside
        assert CacheBase.__dict__["get_system"] is original
        CacheBase.get_system()
        assert asked
    finally:
        triton_compat.HAS_TRITON, triton_compat.triton_key = before
        original.__func__.cache_clear()
        aot_cache._system_without_triton.cache_clear()
