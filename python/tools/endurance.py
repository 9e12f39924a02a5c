"""Many threads, sizes, errors and compilations through torch.compile with this backend.

    python tools/endurance.py [--only NAME] [--part 0.1]

Each trial is a function of the part of its full count that is run; it raises where a value is wrong, where a call fails that
should not, or where memory grows. Printed are seconds, and kilobytes of memory that came with the second half of the work.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
import time

import torch

OPTIONS = {"fallback": "error"}


def compiled(f, **keywords):
    torch._dynamo.reset()
    return torch.compile(f, backend="ferroflux", options=OPTIONS, **keywords)


def resident() -> int:
    """Kilobytes of memory of this process, after what can be freed is."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def check(ours, eager) -> None:
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


def grown(work, count: int, most: int) -> str:
    """Runs the work so often; raises where the second half leaves more kilobytes than ``most``."""
    for n in range(count // 2):
        work(n)
    before = resident()
    for n in range(count // 2, count):
        work(n)
    more = resident() - before
    if more > most:
        raise AssertionError(f"{more} KB more after {count - count // 2} repetitions")
    return f"{count} repetitions, {more} KB more in the second half"


def threads(part: float) -> str:
    """1,000 calls from each of 8 threads, while one of them writes a weight.

    TorchDynamo refuses calls while another thread traces, and a thread may trace again for its own state: so each thread has its first
    call alone.
    """
    layer = torch.nn.Linear(32, 32)
    f = lambda x: layer(x).relu().sum(-1)
    g, wrong, count = compiled(f), [], max(int(1000 * part), 20)
    inputs = [torch.randn(n + 1, 32) for n in range(8)]
    torch._dynamo.mark_dynamic(inputs[1], 0)
    with torch.no_grad():
        [g(x) for x in inputs]
    expected = [f(x).detach() for x in inputs]
    alone, ready = threading.Lock(), threading.Barrier(8)

    def work(n: int) -> None:
        try:
            with torch.no_grad():
                with alone:
                    check(g(inputs[n]), expected[n])
                ready.wait(300)
                for turn in range(count):
                    if n == 0 and turn % 50 == 0:
                        layer.bias.mul_(1.0)
                    check(g(inputs[n]), expected[n])
        except BaseException as e:
            wrong.append(e)
            ready.abort()

    all_threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    [t.start() for t in all_threads]
    [t.join() for t in all_threads]
    if wrong:
        raise wrong[0]
    return f"8 threads, {count} calls each"


def sizes(part: float) -> str:
    """10,000 calls with random sizes."""
    f = lambda x, w: torch.cat([(x @ w).softmax(-1), x[:, :1]], -1).sum(0)
    g, draw, w = compiled(f, dynamic=True), random.Random(0), torch.randn(16, 8)

    def work(_: int) -> None:
        x = torch.randn(draw.choice([1, 2, 3, draw.randrange(1, 200), draw.randrange(1, 2000)]), 16)
        check(g(x, w), f(x, w))

    work(0)
    return grown(work, max(int(10_000 * part), 100), 8192)


def errors(part: float) -> str:
    """Calls that fail between calls that do not, in both directions."""
    f = lambda x, i: (x[i] * 2).exp()
    g, x = compiled(f), torch.randn(8, requires_grad=True)
    failed = 0

    def work(n: int) -> None:
        nonlocal failed
        good, bad = torch.tensor([n % 8, 0]), torch.tensor([8 + n, 0])
        try:
            g(x, bad)
        except (RuntimeError, IndexError):
            failed += 1
        y = g(x, good)
        check(y, f(x, good))
        (grad,) = torch.autograd.grad(y.sum(), x)
        check(grad, torch.autograd.grad(f(x, good).sum(), x)[0])

    count = max(int(2000 * part), 50)
    text = grown(work, count, 8192)
    if failed != count:
        raise AssertionError(f"{failed} of {count} wrong calls failed")
    return text


def programs(part: float) -> str:
    """10,000 small graphs compiled, run and dropped, without TorchDynamo."""
    from ferroflux import _native

    def work(n: int) -> None:
        text = (
            f'fx 1.0\ngraph "g" {{\n  %x: f32[4] = input "x"\n  %y: f32[4] = aten.mul.Scalar(%x, {n}.5)\n'
            f"  %z: f32[] = aten.sum.default(%y, none)\n  return %z\n}}\n"
        )
        code = _native.Callable(text, ["read"], "cpu", "default", [("threads", "1")], int, False)
        (z,) = code([torch.ones(4)])
        check(z, torch.tensor(4 * (n + 0.5)))

    return grown(work, max(int(10_000 * part), 200), 8192)


def compilations(part: float) -> str:
    """1,000 functions compiled through torch.compile, forward and backward."""

    def work(n: int) -> None:
        g, x = compiled(lambda x: (x * (n + 0.5)).sin().sum()), torch.ones(4, requires_grad=True)
        g(x).backward()
        check(x.grad, (n + 0.5) * torch.cos(torch.full((4,), n + 0.5)))

    # TorchDynamo itself keeps some kilobytes of each.
    count = max(int(1000 * part), 30)
    return grown(work, count, 8192 + 24 * count)


def whole_processes(part: float) -> str:
    """Processes that end while programs run. The threads call compiled code itself, and for long: under TorchDynamo's frames,
    and where it frees a tensor, a thread that Python ends takes the process along whatever the backend is."""
    import subprocess

    text = (
        "import threading, torch\n"
        "from ferroflux import runner\n"
        "codes = []\nrunner.LISTENERS.append(lambda text, code: codes.append(code))\n"
        "g = torch.compile(lambda x: (x @ x).relu(), backend='ferroflux')\n"
        "x = torch.randn(1024, 1024); keep = g(x)\n"
        "def forever():\n    while True: codes[0]([x])\n"
        "[threading.Thread(target=forever, daemon=True).start() for _ in range(4)]\n"
    )
    count = max(int(20 * part), 1)
    for _ in range(count):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(f"the process ended with {done.returncode}: {done.stderr[-500:]}")
    return f"{count} processes"


TRIALS = (threads, sizes, errors, programs, compilations, whole_processes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", type=float, default=1.0)
    args = parser.parse_args()
    for trial in TRIALS:
        if args.only in trial.__name__:
            start = time.time()
            print(f"{trial.__name__:<16} {trial(args.part)}; {time.time() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
