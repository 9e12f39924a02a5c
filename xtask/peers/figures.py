"""The figures of a timed call, as the peers of `xtask compare` in this folder print them. Imports nothing large: who measures memory must not."""
import json
import os
import resource
import statistics
import time


def report(path, mode, call, seconds, first, error):
    """Times `call` for some seconds, at least five runs, and prints one JSON line; `first` and `error` are those of the call before."""
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    figures = dict(
        model=os.path.basename(path),
        mode=mode,
        median_ms=round(statistics.median(times) * 1e3, 3),
        min_ms=round(min(times) * 1e3, 3),
        runs=len(times),
        first_call_s=round(first, 3),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        relative_error=error,
    )
    print(json.dumps(figures), flush=True)
