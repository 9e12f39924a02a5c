"""Runs the samples of PyTorch's own operator tests (`op_db`) through torch.compile with this backend.

    python tools/opinfo.py --dtype float32 --direction forward [--device cuda] [--only REGEX] [--part 0/2] [--json FILE] [--fallback torch]

A sample passes where values, dtypes and sizes are those of eager PyTorch within the tolerances of `torch.testing` for the
dtype (gradients: ten times these). Where float64 can be had and eager differs from it as much as we do, eager's own rounding
is what differs, and the sample passes. An operator passes where all its samples do. What is random is compared by
sizes and dtypes alone. What TorchDynamo or AOTAutograd refuse for the backend `aot_eager` too is `not ours`. One line an operator that fails, then a summary by kind.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import re
import sys
import time
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

# Results that are not decided by the arguments: memory that is not set, random numbers.
UNDECIDED = {
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "bernoulli", "multinomial",
    "normal", "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform", "exponential", "geometric",
    "log_normal", "cauchy", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu", "svd_lowrank",
    "pca_lowrank", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
}  # fmt: skip
# Operators whose positions among equal elements are not decided; their values are compared.
TIES = {"sort", "argsort", "msort"}
TOLERANCE = {
    torch.float32: (1.3e-5, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (1e-3, 1e-3),
}


def name_of(op) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def copied(value, dtype=None, grad=False):
    """Arguments of their own, in another floating dtype where given."""

    def one(t):
        if not isinstance(t, torch.Tensor):
            return t
        new = t.detach().clone()
        if dtype is not None and new.is_floating_point():
            new = new.to(dtype)
        return new.requires_grad_(grad and t.requires_grad)

    return pytree.tree_map(one, value)


def leaves(value):
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def numbers(value):
    return value.to_dense() if value.layout is not torch.strided else value


class Differs(Exception):
    """Another result than eager PyTorch's."""


def compare(ours, eager, exact, undecided, scale, ties=False):
    """Raises ``Differs`` unless all tensors agree; ``exact()`` gives the results in float64."""
    ours, eager = leaves(ours), leaves(eager)
    if len(ours) != len(eager):
        raise Differs(f"{len(ours)} tensors, eager has {len(eager)}")
    for n, (a, b) in enumerate(zip(ours, eager)):
        if a.dtype != b.dtype or a.shape != b.shape:
            raise Differs(f"result {n} is {a.dtype}{list(a.shape)}, eager's {b.dtype}{list(b.shape)}")
        if undecided or ties and not b.is_floating_point():
            continue
        rtol, atol = TOLERANCE.get(b.dtype, (1e-5, 1e-5) if b.dtype.is_complex else (0, 0))
        try:
            torch.testing.assert_close(numbers(a), numbers(b), rtol=rtol * scale, atol=atol * scale, equal_nan=True)
        except AssertionError as e:
            judge(n, a, b, exact, str(e))


def judge(n, a, b, exact, message):
    """Whether float64 says that we are no further off than eager PyTorch."""
    text = " ".join(message.split())[:160]
    if not b.is_floating_point():
        raise Differs(f"result {n}: {text}")
    try:
        true = leaves(exact())[n].double()
    except Exception:
        raise Differs(f"result {n}: {text}") from None
    off = lambda t: (t.double() - true).abs().nan_to_num(0, 0, 0)
    # Where eager PyTorch has no number but there is one, ours must be near it.
    lost = ~b.isfinite() & true.isfinite()
    rtol, atol = TOLERANCE[b.dtype]
    found = off(a)[lost] <= atol + rtol * true[lost].abs()
    same_nan = torch.equal(a.isnan() | lost, b.isnan() | lost) and torch.equal(a.isinf() | lost, b.isinf() | lost)
    bound = 2 * off(b).masked_fill(lost, 0).max() + torch.finfo(a.dtype).eps * true.abs().nan_to_num(0, 0, 0).max()
    if not same_nan or not found.all() or a[lost].isnan().any() or off(a).masked_fill(lost, 0).max() > bound:
        raise Differs(f"result {n}: {text}")


def forward(op, sample, f, undecided):
    args = (sample.input, sample.args, sample.kwargs)
    torch.manual_seed(0)
    eager = call(op, copied(args))
    torch.manual_seed(0)
    with torch.no_grad():
        ours = f(*copied(args))
    compare(ours, eager, lambda: call(op, copied(args, torch.float64)), undecided, 1, op.name in TIES)


def call(op, args):
    input, rest, kwargs = args
    return op.op(input, *rest, **kwargs)


def backward(op, sample, f, undecided):
    args = (sample.input, sample.args, sample.kwargs)
    extra = sample.output_process_fn_grad or (lambda x: x)

    def grads(function, args):
        torch.manual_seed(0)
        outs = [t for t in leaves(extra(function(*args))) if t.requires_grad]
        wrt = [t for t in leaves(args) if t.requires_grad]
        if not outs or not wrt:
            return None
        weights = [torch.linspace(0.5, 1.5, t.numel(), device=t.device).reshape(t.shape).to(t.dtype) for t in outs]
        found = torch.autograd.grad(outs, wrt, weights, allow_unused=True)
        return [g if g is not None else torch.zeros_like(t) for g, t in zip(found, wrt)]

    eager_call = lambda *a: call(op, a)
    eager = grads(eager_call, copied(args, grad=True))
    if eager is None:
        return False
    ours = grads(f, copied(args, grad=True))
    compare(ours, eager, lambda: grads(eager_call, copied(args, torch.float64, grad=True)), undecided, 10)
    return True


def reason(error: Exception) -> tuple[str, str]:
    """Kind and text of a failure."""
    import ferroflux

    text = " ".join(str(error).split())
    inner = getattr(error, "inner_exception", error)
    if isinstance(error, Differs):
        return "wrong", text
    if isinstance(inner, ferroflux.Unsupported):
        return "unsupported", "; ".join(sorted({f"{t}: {w}"[:180] for _, t, w in inner.args[1]}))
    if isinstance(inner, ferroflux.Error):
        return "error", text[:300]
    return "torch", f"{type(error).__name__}: {text[:160]}"


def run(op, args, dtype) -> tuple[str, str]:
    """The outcome of one operator."""
    is_backward = args.direction == "backward"
    undecided = name_of(op) in UNDECIDED or op.name in UNDECIDED
    torch._dynamo.reset()
    torch.manual_seed(0)
    try:
        samples = []
        for sample in op.sample_inputs(args.device, dtype, requires_grad=is_backward):
            samples.append(sample)
            if len(samples) >= args.samples:
                break
    except Exception as e:
        return "no samples", str(e)[:80]
    options = {"fallback": args.fallback}
    f = torch.compile(
        lambda input, rest, kwargs: op.op(input, *rest, **kwargs),
        backend=args.backend,
        fullgraph=False,
        dynamic=args.dynamic,
        **({"options": options} if args.backend == "ferroflux" else {}),
    )
    seen = 0
    for sample in samples:
        try:
            if is_backward:
                seen += bool(backward(op, sample, f, undecided))
            else:
                eager_fails(op, sample)
                forward(op, sample, f, undecided)
                seen += 1
        except Skipped:
            continue
        except Exception as e:
            if is_backward and not eager_grads(op, sample):
                continue
            kind, why = reason(e)
            if kind == "torch" and args.backend == "ferroflux" and run(op, other(args), dtype)[0] != "passed":
                return "not ours", why
            return kind, why
    return ("passed", "") if seen else ("no samples", "")


def other(args):
    """The same with the backend that runs AOTAutograd's graphs by torch."""
    return argparse.Namespace(**{**vars(args), "backend": "aot_eager"})


class Skipped(Exception):
    """Eager PyTorch fails too."""


def eager_fails(op, sample):
    try:
        call(op, copied((sample.input, sample.args, sample.kwargs)))
    except Exception as e:
        raise Skipped(str(e)) from None


def eager_grads(op, sample) -> bool:
    try:
        backward(op, sample, lambda *a: call(op, a), True)
        return True
    except Exception:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--direction", choices=["forward", "backward"], default="forward")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="0/1", help="this part of so many, for several processes")
    parser.add_argument("--samples", type=int, default=3, help="samples of each operator")
    parser.add_argument("--every", type=int, default=1, help="every so many of the operators")
    parser.add_argument("--fallback", choices=["error", "torch"], default="error")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--backend", default="ferroflux")
    parser.add_argument("--json")
    parser.add_argument("--at-least", type=float, help="exit with an error where fewer percent pass")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    dtype = getattr(torch, args.dtype)
    part, parts = map(int, args.part.split("/"))
    chosen = [op for op in op_db if re.search(args.only, name_of(op))][:: args.every]
    chosen = [op for i, op in enumerate(chosen) if i % parts == part]
    results, start = collections.defaultdict(dict), time.time()
    for op in chosen:
        known = op.supported_backward_dtypes(args.device) if args.direction == "backward" else op.supported_dtypes(args.device)
        if dtype not in known or args.direction == "backward" and not op.supports_autograd:
            continue
        kind, why = run(op, args, dtype)
        results[kind][name_of(op)] = why
        if kind not in ("passed", "no samples"):
            print(f"{kind:<12} {name_of(op)}: {why}", flush=True)
    counted = {k: len(v) for k, v in results.items()}
    judged = sum(n for k, n in counted.items() if k not in ("no samples", "not ours"))
    passed = counted.get("passed", 0)
    print(f"{args.dtype} {args.direction}: {passed} of {judged} operators pass ({100 * passed / max(judged, 1):.1f}%), "
          f"{', '.join(f'{n} {k}' for k, n in sorted(counted.items()) if k != 'passed')}; {time.time() - start:.0f} s")  # fmt: skip
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0 if args.at_least is None or 100 * passed >= args.at_least * judged else 1


if __name__ == "__main__":
    sys.exit(main())
