"""``python -m perfgate.program.rank -- PROGRAM``: what a launcher starts once per rank, so that nsys runs inside of it.

Without ``perfgate run`` around it, and in unprofiled runs, the program simply takes this process's place. Under it, nsys
profiles this rank into the capture's folder (shared between nodes): ``rank-<n>/profile.nsys-rep``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from perfgate.errors import PerfgateError, UsageError
from perfgate.profilers.nsys import STARTS, scratch
from perfgate.profilers.nsys_found import NsysFacts, probe
from perfgate.program.launch import RANK_CAPTURE, Watched, nsys_arguments, wrote_report

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def rank_of(environment: Mapping[str, str]) -> int:
    """The rank of this process, as its launcher says. Raises :class:`UsageError` where none does."""
    for name in RANKS:
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    raise UsageError(f"no rank: none of {', '.join(RANKS)} is set", "start it through torchrun, srun or mpirun")


def main(arguments: Sequence[str]) -> int:
    """Runs the program and returns its exit status."""
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command:
        raise UsageError("no program", "python -m perfgate.program.rank -- python train.py")
    told = os.environ.pop(RANK_CAPTURE, "")
    if not told:
        try:
            os.execvp(command[0], command)  # noqa: S606 — no shell: the program takes this process's place
        except OSError as error:
            raise UsageError(f"can't start {command[0]}: {error.strerror}", "is it on PATH?") from None
    where = json.loads(told)
    folder = Path(where["folder"]) / f"rank-{rank_of(os.environ)}"
    folder.mkdir(exist_ok=True)
    facts = probe(Path(where["nsys"]))
    for start in range(1, STARTS + 1):
        code, ended = _profiled(facts, folder, where["watched"], command)
        if code == 0 or ended or wrote_report(folder) or start == STARTS:
            break
        sys.stderr.write(f"perfgate: nsys did not start the program (exit {code}): once more\n")
    return code if code >= 0 else 128 - code


def _profiled(facts: NsysFacts, folder: Path, watched: Watched, command: Sequence[str]) -> tuple[int, bool]:
    """(exit status of nsys around the program, whether the launcher ended it)."""
    ended = []
    with scratch(facts) as (extra, flags):
        before = [str(facts.path), *nsys_arguments(facts, folder, watched), *flags]
        process = subprocess.Popen([*before, *command], env={**os.environ, **extra})

        def hand_on(number: int, _: FrameType | None) -> None:
            ended.append(number)
            process.send_signal(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, hand_on)
        return process.wait(), bool(ended)


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except PerfgateError as error:
        sys.stderr.write(f"error: {error.text}\nnext: {error.mend}\n")
        status = error.exit_code
    raise SystemExit(status)
