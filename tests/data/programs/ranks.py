"""Ranks of a plain launcher, without torch: each runs the same steps, and writes down what it timed itself.

``$PERFGATE_RUN_DIR/timed-<rank>.json`` holds per step ``[begin, end, work before, work begin, work end, work after]`` in
perf_counter ns: the step's start lies between the ``end`` before it and its ``begin``, the range "work" within the outer and
around the inner two of its four. ``pids.json`` holds the processes.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import nvtx

import perfgate

clock = time.perf_counter_ns


def wanted():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--work-ms", type=float, default=4.0)
    parser.add_argument("--slow-rank", type=int, default=-1, help="works eight times as long")
    parser.add_argument("--no-helper", action="store_true", help="marks its steps with nvtx itself")
    parser.add_argument("--silent-rank", type=int, default=-1, help="opens no range")
    parser.add_argument("--dying-rank", type=int, default=-1, help="is killed in its third step")
    parser.add_argument("--unnoticed", action="store_true", help="the launcher ends with 0 all the same")
    parser.add_argument("--hanging-rank", type=int, default=-1)
    parser.add_argument("--exit-status", type=int, default=0)
    return parser.parse_args()


def batches(count):
    for number in range(count):
        with nvtx.annotate("step"):
            yield number


def rank(local, options):
    number = options.node_rank * options.ranks + local
    os.environ.update(RANK=str(number), WORLD_SIZE=str(options.nodes * options.ranks))
    seconds = options.work_ms / 1000 * (8 if number == options.slow_rank else 1)
    if number == options.silent_rank:
        time.sleep(options.steps * seconds)
        return
    timed = []
    for step in batches(options.steps) if options.no_helper else perfgate.steps(range(options.steps), tokens=10):
        begin = clock()
        if number == options.hanging_rank and step == 2:
            time.sleep(3600)
        if number == options.dying_rank and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        before = clock()
        with nvtx.annotate("work"):
            inner = [clock()]
            time.sleep(seconds)
            inner.append(clock())
        timed.append([begin, 0, before, *inner, clock()])
        timed[-1][1] = clock()
    Path(os.environ["PERFGATE_RUN_DIR"], f"timed-{number}.json").write_text(json.dumps(timed))


def main():
    options = wanted()
    started = multiprocessing.get_context("spawn")  # nsys records nothing of a child that forks without exec
    ranks = [started.Process(target=rank, args=(number, options)) for number in range(options.ranks)]
    for one in ranks:
        one.start()
    Path(os.environ["PERFGATE_RUN_DIR"], "pids.json").write_text(json.dumps([os.getpid(), *(one.pid for one in ranks)]))
    for one in ranks:
        one.join()
    died = [number for number, one in enumerate(ranks) if one.exitcode]
    if died and not options.unnoticed:
        sys.stderr.write(f"rank {died[0]} died with {ranks[died[0]].exitcode}\n")
        return 1
    return options.exit_status


if __name__ == "__main__":
    sys.exit(main())
