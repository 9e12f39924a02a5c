"""Seconds of the first call of a compiled network in a process of its own: cold, from the caches, and what TorchDynamo and
AOTAutograd take of it.

    python tools/first_call.py [--network resnet50] [--repeat 3] [--inductor]

`capture` is a backend that compiles and computes nothing: TorchDynamo and AOTAutograd with this package's decompositions.
Each case runs in new processes with caches in a new folder; `again` is a later process with the caches of the first, with
`TORCH_CACHING_PRECOMPILE=1`. Wall and processor seconds are those of the call alone, imports apart; the least of the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile


def measured(network: str, backend: str) -> None:
    """In a process of its own: prints the seconds of the first call."""
    import time

    import torch
    import torchvision

    import ferroflux.backend  # noqa: F401
    from ferroflux import decompositions

    def capture(gm, inputs):
        from torch._dynamo.backends.common import aot_autograd

        def plain(gm, inputs):
            values = [n.meta["val"] for n in next(iter(reversed(gm.graph.nodes))).args[0]]
            return lambda *args: [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in values]

        return aot_autograd(fw_compiler=plain, decompositions=decompositions.table())(gm, inputs)

    torch.manual_seed(0)
    model = getattr(torchvision.models, network)().eval()
    x = torch.randn(1, 3, 224, 224)
    compiled = torch.compile(model, backend=capture if backend == "capture" else backend)
    with torch.no_grad():
        wall, cpu = time.perf_counter(), time.process_time()
        compiled(x)
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]))


def run(network: str, backend: str, folder: str, **settings: str) -> list[float]:
    caches = {"FERROFLUX_CACHE_DIR": os.path.join(folder, "own"), "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "torch")}
    given = [sys.executable, __file__, "--network", network, "--measure", backend]
    done = subprocess.run(given, env={**os.environ, **caches, **settings}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measured(args.network, args.measure)
        return
    cases = ["capture", "ferroflux", *(["inductor"] if args.inductor else [])]
    found: dict[str, list[list[float]]] = {}
    for _ in range(args.repeat):
        for backend in cases:
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(backend, []).append(run(args.network, backend, folder))
        with tempfile.TemporaryDirectory() as folder:
            setting = {"TORCH_CACHING_PRECOMPILE": "1"}
            run(args.network, "ferroflux", folder, **setting)
            found.setdefault("again", []).append(run(args.network, "ferroflux", folder, **setting))
    for name, times in found.items():
        wall, cpu = map(min, zip(*times))
        print(f"{args.network} {name:<10} {wall:6.2f} s, of the processor {cpu:6.2f} s")


if __name__ == "__main__":
    main()
