"""Ranks of torchrun in lock step through gloo, one of them slow; each writes down what it timed itself, as ranks.py does."""

import json
import os
import sys
import time
from pathlib import Path

import nvtx
import torch
import torch.distributed as dist

clock = time.perf_counter_ns
slow_rank, steps = int(sys.argv[1]), int(sys.argv[2])

dist.init_process_group("gloo")
rank = dist.get_rank()
timed = []
for _ in range(steps):
    with nvtx.annotate("step"):
        begin = before = clock()
        with nvtx.annotate("work"):
            inner = [clock()]
            time.sleep(0.02 if rank == slow_rank else 0.004)
            inner.append(clock())
        after = clock()
        dist.all_reduce(torch.ones(1))
        timed.append([begin, clock(), before, *inner, after])
Path(os.environ["PERFGATE_RUN_DIR"], f"timed-{rank}.json").write_text(json.dumps(timed))
dist.destroy_process_group()
