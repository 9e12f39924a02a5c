"""What a call costs besides the work: graphs of 1, 20 and 120 small tensors, compared with TorchInductor.

    python tools/overhead.py [--seconds 2] [--device cuda]

The two are called in turn, in blocks of calls; printed are the median of the blocks, and the least in brackets, in microseconds a call, on
tensors of four elements; on a machine that does other work too the least says more. The first three graphs add all their inputs, the others are layers whose weights are parameters.
"""

from __future__ import annotations

import argparse
import time

import torch

BLOCK = 200


def added(*tensors):
    total = tensors[0]
    for t in tensors[1:]:
        total = total + t
    return total + 1


def layers(count: int) -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.LayerNorm(4) for _ in range(count // 2)])


def cases(device: str):
    for count in (1, 20, 120):
        yield f"{count} inputs", added, [torch.randn(4, device=device) for _ in range(count)]
    for count in (20, 120):
        yield f"{count} parameters", layers(count).to(device), [torch.randn(4, device=device)]


def measured(functions: dict, inputs: list, seconds: float, device: str) -> dict[str, str]:
    """Microseconds a call of each: the median of the blocks and the least."""
    blocks = {name: [] for name in functions}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    end = time.perf_counter() + seconds
    with torch.no_grad():
        for f in functions.values():
            [f(*inputs) for _ in range(BLOCK)]
        while time.perf_counter() < end:
            for name, f in functions.items():
                wait()
                start = time.perf_counter()
                for _ in range(BLOCK):
                    f(*inputs)
                wait()
                blocks[name].append((time.perf_counter() - start) / BLOCK * 1e6)
    return {name: f"{sorted(found)[len(found) // 2]:6.1f} ({min(found):.1f})" for name, found in blocks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, function, inputs in cases(args.device):
        functions = {}
        for backend in ("ferroflux", "inductor"):
            torch._dynamo.reset()
            functions[backend] = torch.compile(function, backend=backend)
            with torch.no_grad():
                functions[backend](*inputs)
        found = measured(functions, inputs, args.seconds, args.device)
        print(f"{name:<16} ferroflux {found['ferroflux']} µs, inductor {found['inductor']} µs", flush=True)


if __name__ == "__main__":
    main()
