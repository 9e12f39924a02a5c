"""Runs whole networks through torch.compile with this backend, inference and one training step, and compares with eager.

    python tools/networks.py [--only REGEX] [--part 0/2] [--device cuda] [--dtype bfloat16] [--train | --infer] [--inductor]
                             [--archive] [--fallback torch] [--mode MODE] [--seconds 1] [--json FILE]

Eager PyTorch in float64 is the judge where a network can be run so: a result is right where it is as near to it as 1e-3 of
its largest value, or as twice eager's own distance. Gradients of random networks jump where rounding moves a number across the
kink of an activation or of a maximum, and normalisation over a few elements magnifies it: a step that is not right in float32
is run in float64 by this backend too, and is right where that agrees to 1e-6; both distances are printed. With ``--dtype`` autocast of that dtype is around the network. ``--archive`` times the same
network from its archive of torch.export too, in inference, and names those whose call takes 5 % and 20 µs longer than that. A line a
network: right or wrong (with the two distances) or the operators that are refused, seconds of the first call, milliseconds
a call of eager, ferroflux and inductor; then counts and geometric means.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import logging
import math
import os
import re
import sys
import tempfile
import time
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import network_list  # noqa: E402


def leaves(value) -> list[torch.Tensor]:
    """The floating results of a network; models of transformers return objects of their own."""
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def moved(value, device=None, dtype=None):
    """A copy of arguments elsewhere, floating ones in another dtype where given."""

    def one(t):
        if not isinstance(t, torch.Tensor):
            return t
        return t.detach().clone().to(device=device, dtype=dtype if dtype is not None and t.is_floating_point() else t.dtype)

    return pytree.tree_map(one, value)


def loss_of(results: list[torch.Tensor]) -> torch.Tensor:
    """A number to which every element contributes differently."""
    total = 0
    for t in results:
        weights = torch.sin(torch.arange(t.numel(), device=t.device, dtype=torch.float32)).to(t.dtype)
        total = total + (t.reshape(-1) * weights).mean()
    return total


class Network:
    """One network with its inputs on a device."""

    def __init__(self, name: str, args: argparse.Namespace):
        self.args = args
        model, given, keywords = network_list.build(name)
        self.model = model.to(args.device)
        self.given = moved((given, keywords), args.device)

    def autocast(self):
        if self.args.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.args.device, getattr(torch, self.args.dtype))

    def run(self, f, given=None):
        """What a call in inference returns."""
        positional, keywords = self.given if given is None else given
        with torch.no_grad(), self.autocast():
            return f(*positional, **keywords)

    def infer(self, f, given=None):
        return leaves(self.run(f, given))

    def step(self, f, given=None, plain=False):
        positional, keywords = self.given if given is None else given
        with contextlib.nullcontext() if plain else self.autocast():
            results = leaves(f(*positional, **keywords))
        loss_of([t for t in results if t.requires_grad]).backward()
        return [t.detach() for t in results]

    def after(self, f, model=None, given=None, plain=False):
        """The results of a step with what it leaves in buffers, and its gradients by name."""
        model = self.model if model is None else model
        results = self.step(f, given, plain)
        buffers = [b.detach().clone() for b in model.buffers() if b.is_floating_point()]
        return results + buffers, gradients(model)


def gradients(model) -> dict[str, torch.Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def distance(found: torch.Tensor, true: torch.Tensor) -> float:
    """Largest difference, of the largest value; infinite where one is no number and the other is."""
    found, true = found.detach().double().cpu(), true.detach().double().cpu()
    if found.shape != true.shape or not torch.equal(found.isfinite(), true.isfinite()):
        return math.inf
    if found.numel() == 0:
        return 0.0
    found, true = found.nan_to_num(0, 0, 0), true.nan_to_num(0, 0, 0)
    return float((found - true).abs().max())


def judged(ours, eager, true, bound) -> tuple[bool, float, float]:
    """Whether all are right, and the largest distances of ours and of eager, as parts of the largest value of each result."""
    if len(ours) != len(eager):
        return False, math.inf, 0.0
    top = max((float(t.detach().abs().nan_to_num(0, 0, 0).max()) for t in true if t.numel()), default=0.0)
    right, worst, eager_worst = True, 0.0, 0.0
    for a, b, t in zip(ours, eager, true):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False, math.inf, 0.0
        # Results that cancel to nothing beside the others are compared with those.
        scale = max(float(t.detach().abs().nan_to_num(0, 0, 0).max()) if t.numel() else 0.0, 1e-4 * top, 1e-30)
        mine, theirs = distance(a, t) / scale, distance(b, t) / scale
        right &= mine <= max(bound, 2 * theirs)
        worst, eager_worst = max(worst, mine), max(eager_worst, theirs)
    return right, worst, eager_worst


def in_double(network: Network, train: bool, compile=lambda model: model):
    """Results in float64, and gradients by name in training; ``None`` where the network cannot run so."""
    model = copy.deepcopy(network.model).double()
    model.zero_grad(set_to_none=True)
    given = moved(network.given, dtype=torch.float64)
    try:
        if train:
            return network.after(compile(model), model, given, plain=True)
        with torch.no_grad():
            return leaves(model(*given[0], **given[1]))
    except Exception:
        return None


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(calls: dict, seconds: float, device: str) -> dict[str, float]:
    """The median milliseconds of each, called in turn, the first of a turn last in the next.

    Before a timed call come others of its own: else it would be one after another library's, whose threads still spin and
    whose code and data fill the caches, and always after the same one's.
    """
    times = {name: [] for name in calls}
    order = list(calls.items())
    end = time.perf_counter() + seconds * len(calls)
    while len(next(iter(times.values()))) < 5 or time.perf_counter() < end:
        order.append(order.pop(0))
        for name, call in order:
            warm(call)
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: sorted(found)[len(found) // 2] for name, found in times.items()}


def warm(call) -> None:
    """Calls eight times and for three milliseconds, where that takes no more than 20: with fewer calls much of a network's weights,
    and of what TorchDynamo's guards look at, is still to be read from memory, and what shares its weights with the one before is quicker."""
    start, count = time.perf_counter(), 0
    while count < 1 or (spent := time.perf_counter() - start) < 20e-3 and (count < 8 or spent < 3e-3):
        call()
        count += 1


def compiled(model, args: argparse.Namespace):
    options = {"fallback": args.fallback, "mode": args.mode}
    return torch.compile(model, backend="ferroflux", options=options, fullgraph=False)


def captured(model, archive):
    """The same function with a backend whose code is a call of the archive: what it takes beyond the archive is what TorchDynamo and
    AOTAutograd take around compiled code, whoever compiles it. TorchDynamo keeps the code of several backends for one function, so
    that both are timed in turn: what a call finds in the caches is the same for both."""
    from torch._dynamo.backends.common import aot_autograd

    def backend(graph, _):
        first = []

        def call(args):
            if not first:
                first.append(graph(*args))
            archive()
            args.clear()
            return list(first[0])

        call._boxed_call = True
        return call

    return torch.compile(model, backend=aot_autograd(fw_compiler=backend, inference_compiler=backend))


def archived(network: Network, model, mode: str):
    """A call of the same network from its archive, with its tensors in the order of the archive's inputs."""
    import ferroflux

    positional, keywords = network.given
    program = torch.export.export(model, positional, keywords, strict=False)
    # A file that is mapped may be removed.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "network.pt2")
        torch.export.save(program, path)
        loaded = ferroflux.load(path, mode=mode, threads=torch.get_num_threads())
    tensors = [t for t in pytree.tree_leaves((positional, keywords)) if isinstance(t, torch.Tensor)]
    return lambda: loaded(*tensors)


def run_infer(network: Network, args: argparse.Namespace) -> dict:
    model = network.model.eval()
    f = compiled(model, args)
    eager = network.infer(model)
    start = time.perf_counter()
    ours = network.infer(f)
    synchronize(args.device)
    first = time.perf_counter() - start
    ours = network.infer(f)
    true = in_double(network, train=False)
    bound = 1e-3 if args.dtype == "float32" else 5e-2
    right, mine, theirs = judged(ours, eager, true if true is not None else eager, bound)
    result = {"right": right, "ours": mine, "eager": theirs, "judge": "float64" if true is not None else "eager", "first_s": first}
    calls = {"eager": lambda: network.run(model), "ferroflux": lambda: network.run(f)}
    if args.archive:
        try:
            calls["archive"] = archived(network, model, args.mode)
            if not judged(leaves(calls["archive"]()), eager, eager, bound)[0]:
                raise ValueError("its results differ from eager's")
            least = captured(model, calls["archive"])
            calls["captured archive"] = lambda: network.run(least)
        except Exception as e:
            calls.pop("archive", None)
            result["note"] = f"no archive: {' '.join(str(e).split())[:80]}"
    return timing(result, calls, network.run, model, args)


def run_train(network: Network, args: argparse.Namespace) -> dict:
    model = network.model.train()
    state = copy.deepcopy(model.state_dict())
    true = in_double(network, train=True)
    eager = network.after(model)
    restore(model, state)
    f = compiled(model, args)
    start = time.perf_counter()
    ours = network.after(f)
    synchronize(args.device)
    result = {"first_s": time.perf_counter() - start}
    restore(model, state)
    judged_step(result, network, ours, eager, true)

    def step(g):
        network.step(g)
        model.zero_grad(set_to_none=True)

    calls = {"eager": lambda: step(model), "ferroflux": lambda: step(f)}
    return timing(result, calls, step, model, args)


def restore(model, state) -> None:
    model.zero_grad(set_to_none=True)
    model.load_state_dict(state)


def judged_step(result: dict, network: Network, ours, eager, true) -> None:
    """Whether the results and the gradients of a step are right."""
    bounds = (1e-3, 2e-3) if network.args.dtype == "float32" else (5e-2, 1e-1)
    names = list(eager[1])
    if set(ours[1]) != set(names):
        lacking = sorted(set(names) ^ set(ours[1]))[:3]
        result.update(right=False, ours=math.inf, eager=0.0, note=f"gradients of {lacking}")
        return
    values = lambda of: [of[1][n] for n in names]
    judge = true if true is not None and set(true[1]) == set(names) else eager
    forward = judged(ours[0], eager[0], judge[0], bounds[0])
    right, mine, theirs = judged(values(ours), values(eager), values(judge), bounds[1])
    right &= forward[0]
    result.update(right=right, ours=mine, eager=theirs)
    if not forward[0]:
        result["note"] = f"results {forward[1]:.1e} (eager {forward[2]:.1e})"
    if not right and judge is true and network.args.dtype == "float32":
        wide = in_double(network, True, lambda model: compiled(model, network.args))
        if wide is not None and set(wide[1]) == set(names):
            ours_wide, true_wide = wide[0] + values(wide), true[0] + values(true)
            same, off, _ = judged(ours_wide, true_wide, true_wide, 1e-6)
            result.update(right=same, note=result.get("note", "") + f" in float64 {off:.1e}")


def timing(result: dict, calls: dict, call, model, args: argparse.Namespace) -> dict:
    if args.inductor:
        other = torch.compile(model)
        start = time.perf_counter()
        call(other)
        synchronize(args.device)
        result["inductor_first_s"] = time.perf_counter() - start
        calls["inductor"] = lambda: call(other)
    if args.seconds > 0:
        for one in calls.values():
            one()
        result["ms"] = timed(calls, args.seconds, args.device)
    return result


def refused(error: BaseException) -> dict:
    """The operators that an error names, or its text."""
    import ferroflux

    inner = getattr(error, "inner_exception", error)
    text = " ".join(str(inner).split())[:300]
    if isinstance(inner, ferroflux.Unsupported):
        return {"refused": sorted({f"{target}: {why}"[:160] for _, target, why in inner.args[1]})}
    return {"error": f"{type(inner).__name__}: {text}"}


def line(name: str, kind: str, r: dict) -> str:
    if "refused" in r or "error" in r:
        return f"{name:<44} {kind:<5} {'refused: ' + '; '.join(r['refused']) if 'refused' in r else 'error: ' + r['error']}"
    times = " ".join(f"{k} {v:.2f}" for k, v in r.get("ms", {}).items())
    verdict = "right" if r["right"] else "WRONG"
    note = f"  ({r['note']})" if "note" in r else ""
    return f"{name:<44} {kind:<5} {verdict} {r['ours']:.1e} (eager {r['eager']:.1e}) first {r['first_s']:.1f} s, ms: {times}{note}"


def summary(results: dict) -> None:
    for kind in ("infer", "train"):
        found = [r[kind] for r in results.values() if kind in r]
        if not found:
            continue
        right = sum(bool(r.get("right")) for r in found)
        wrong = sum("right" in r and not r["right"] for r in found)
        failed = sum("refused" in r or "error" in r for r in found)
        print(f"{kind}: {len(found)} networks, {right} right, {wrong} wrong, {failed} refused or failed")
        for other in ("eager", "inductor", "archive"):
            ratios = [r["ms"]["ferroflux"] / r["ms"][other] for r in found if other in r.get("ms", {})]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                print(f"  time a call of {other}'s, geometric mean of {len(ratios)}: {mean:.2f}")
        slow = {n: r[kind]["ms"] for n, r in results.items() if "archive" in r.get(kind, {}).get("ms", {})}
        slow = {n: ms for n, ms in slow.items() if ms["ferroflux"] > 1.05 * ms["archive"] + 0.02}
        for name, ms in slow.items():
            within = ms["ferroflux"] <= 1.05 * ms["captured archive"] + 0.02
            why = f", not behind the {ms['captured archive']:.3f} ms of the archive behind PyTorch's capture" if within else ""
            print(f"  behind its archive: {name} {ms['ferroflux']:.3f} ms, {ms['archive']:.3f}{why}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="0/1", help="this part of so many, for several processes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--train", action="store_true", help="the training step alone")
    parser.add_argument("--infer", action="store_true", help="inference alone")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--archive", action="store_true")
    parser.add_argument("--fallback", choices=["error", "torch"], default="error")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--seconds", type=float, default=0.5, help="time of the measurement of each; 0 for none")
    parser.add_argument("--limit", type=float, help="starts no further network after so many seconds")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.archive and (args.device, args.dtype) != ("cpu", "float32"):
        parser.error("--archive compares on the CPU in float32: an archive has no autocast around it")
    logging.disable(logging.CRITICAL)
    torch._dynamo.config.recompile_limit = 64
    if args.device == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    part, parts = map(int, args.part.split("/"))
    chosen = [n for n in network_list.names() if re.search(args.only, n)]
    chosen = [n for i, n in enumerate(chosen) if i % parts == part]
    results, start = {}, time.time()
    for name in chosen:
        if args.limit is not None and time.time() - start > args.limit:
            print(f"left out for lack of time: {chosen[chosen.index(name):]}")
            break
        results[name] = {}
        for kind, run, skip in (("infer", run_infer, args.train), ("train", run_train, args.infer)):
            if skip:
                continue
            torch._dynamo.reset()
            gc.collect()
            try:
                results[name][kind] = run(Network(name, args), args)
            except Exception as e:
                results[name][kind] = refused(e)
            print(line(name, kind, results[name][kind]), flush=True)
            if args.json:
                with open(args.json, "w") as file:
                    json.dump(results, file, indent=1)
    summary(results)
    print(f"{time.time() - start:.0f} s")
    return 0 if all(r.get("right") for of in results.values() for r in of.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
