"""Programs of several processes: DDP, `fully_shard`, `parallelize_module` and functional collectives over gloo."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch.distributed as dist

HERE = pathlib.Path(__file__).parent
# The operators that torch runs in each case; without any the exchanges are outside of the captured graphs.
CASES = {
    "ddp": [],
    "ddp_in_buckets": [],
    "ddp_captured_backward": ["all_reduce"],
    "fully_shard": [],
    "tensor_parallel": ["all_reduce", "wait_tensor"],
    "sequence_parallel": ["all_gather_into_tensor", "reduce_scatter_tensor", "wait_tensor"],
    "collectives": ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast"],
    "unlike_ranks": ["all_reduce", "all_gather_into_tensor"],
}


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo")
@pytest.mark.parametrize("case", CASES)
def test_two_processes(case):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, str(HERE / "ranks.py"), case], env=settings, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in (0, 1):
        said = re.search(rf"rank {rank}: (\d+) graphs; ([^\n]*(?:\n  .*)*)", done.stdout)
        assert said, done.stdout[-2000:]
        assert int(said[1]) > 0
        for name in CASES[case]:
            assert name in said[2]
