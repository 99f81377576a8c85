"""Records a program's steps while it runs: one JSONL file per process, ``rank-<rank>.jsonl`` under ``PERFGATE_STEPS_DIR``.

The first line names the writer, the last one says that it ended properly; a file without it is of a process that died::

    {"schema": 1, "rank": 3, "world": 4, "local_rank": 3, "source": "RANK", "pid": 4711}
    {"step": 0, "start_ns": …, "host_ns": …, "wait_ns": …, "tokens": …, "ended": "ok"}
    {"end_ns": …, "event_ns": [… one per step], "allocated_bytes": …, "reserved_bytes": …}

``start_ns`` and ``end_ns`` (of the last step) are ``perf_counter_ns``; ``host_ns`` is the host's wall time inside the step,
``wait_ns`` the wait for its batch before it. ``event_ns[i]`` is the time from the CUDA event at the start of step i to that at
the start of step i + 1, or at its own end where its loop ends there: what the GPU takes for a step when the host runs ahead,
and what the host takes when it doesn't. ``null`` is "not measured". ``ended`` is "left" for a step that a ``break`` or an
exception left; such a last step has no ``event_ns``. The peaks are those of torch's caching allocator since the program's start
(or its own reset). A second process of the same rank writes ``rank-<rank>-<pid>.jsonl``.

Nothing waits for the GPU while steps run: events are read when they are done. torch is never imported: CUDA counts where the
program has initialised it. The first thread that opens a step is the one whose steps count. A forked child starts a file of its
own. A recorder that fails warns once and stops: it never ends the program, and its file lacks the last line.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import warnings
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

STEPS_DIR = "PERFGATE_STEPS_DIR"
STEP_RANGE = "PERFGATE_STEP_RANGE"
SCHEMA = 1
FLUSH_SECONDS = 1.0  # at most that much is lost of a process that is killed

Ended = Literal["ok", "left", "raised"]

# The launchers' names for a rank, the world and the local rank; the first whose rank is set names all three. SLURM's last:
# a batch script has them too, and what mpirun starts in it inherits rank 0.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


class RankOf(NamedTuple):
    """Which rank this process is, of how many, and who said so; rank 0 of 1 where nobody did."""

    rank: int
    world: int
    local_rank: int | None
    source: str


class OpenStep(NamedTuple):
    """A step that has begun in process ``process``."""

    number: int
    start_ns: int
    process: int


class Recorder:
    """Writes the steps of this process under ``folder``; ``step_range`` is the name of the range that is a step."""

    def __init__(self, folder: Path, step_range: str) -> None:
        self._folder, self.step_range = folder, step_range
        self._lock = threading.RLock()
        self._thread: int | None = None  # whose steps count
        self._open = False
        self._steps = 0
        self._end_ns = 0
        self._left = False  # whether the last step was
        self._lines: list[str] = []
        self._starts: Any = None  # the CUDA event at the start of the last step, until its other end is known
        self._ends: Any = None  # ... and at its end
        self._pairs: deque[tuple[Any, Any]] = deque()  # of the steps whose time is not read yet, in order
        self._event_ns: list[int | None] = []
        self._file, self._sealed_at = -1, -1  # its descriptor, and where its last line begins once that is written
        self._flushed = time.monotonic()
        self._broken = self._over = False  # it failed; its process ends

    def begin(self, name: str) -> OpenStep | None:
        """Begins a step; ``None`` where ``name`` is not the step's range, in a step, and on any thread but the first."""
        if name != self.step_range or self._broken or self._over:
            return None
        with self._lock:
            if self._open or self._thread not in (None, threading.get_ident()):
                return None
            if not self._steps:
                self._create()
                _at_process_end(self)
            event = _event()
            if self._untimed():
                self._pairs.append((self._starts, self._ends if self._left else event))
            self._thread, self._open, self._left = threading.get_ident(), True, False
            self._starts, self._ends = event, None
            self._steps += 1
            return OpenStep(self._steps - 1, time.perf_counter_ns(), os.getpid())

    def end(self, step: OpenStep, ended: Ended, *, tokens: int | None = None, wait_ns: int | None = None) -> None:
        """Ends a step. Does nothing in a process that was forked inside it: the step is the parent's."""
        end_ns = time.perf_counter_ns()
        if step.process != os.getpid() or self._over:
            return
        with self._lock:
            self._open, self._end_ns, self._left = False, end_ns, ended != "ok"
            self._ends = _event()
            line: dict[str, Any] = {"step": step.number, "start_ns": step.start_ns, "host_ns": end_ns - step.start_ns}
            line |= {"wait_ns": wait_ns, "tokens": None if tokens is None else int(tokens), "ended": ended}
            self._lines.append(json.dumps(line))
            self._read_events(wait=False)
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self._write()

    def settle(self, *, at_exit: bool = False) -> None:
        """A loop, or the process, is over: waits for the GPU to end the last step and writes the last line.

        More steps may come: they take its place. A step that is open ``at_exit`` was left, and is in no line.
        """
        with self._lock:
            if not self._steps or self._broken or self._over or (self._open and not at_exit):
                return
            self._over = at_exit
            if self._untimed() and not self._left and not self._open:
                self._pairs.append((self._starts, self._ends))
            self._read_events(wait=True)
            self._write()
            known = any(value is not None for value in self._event_ns)
            last = {"end_ns": self._end_ns, "event_ns": self._event_ns if known else None, **_peaks()}
            self._seal(json.dumps(last))

    def _untimed(self) -> bool:
        """Whether the last step that began waits for the event that ends it."""
        return self._steps > len(self._event_ns) + len(self._pairs)

    def _read_events(self, *, wait: bool) -> None:
        """Turns pairs of events into times, up to the first that the GPU has not reached unless ``wait``."""
        while self._pairs:
            start, end = self._pairs[0]
            taken: int | None = None
            with suppress(RuntimeError):  # the device failed, or the program changed it between the two: not measured
                if start is not None and end is not None:
                    if wait:
                        end.synchronize()
                    elif not end.query():
                        return
                    taken = round(start.elapsed_time(end) * 1e6)
            self._event_ns.append(taken)
            self._pairs.popleft()

    def _write(self) -> None:
        """Writes the lines so far, in place of the last line of an earlier loop."""
        self._flushed = time.monotonic()
        lines = self._lines
        if not lines or self._broken:
            return
        self._lines = []
        try:
            if self._sealed_at >= 0:
                os.ftruncate(self._file, self._sealed_at)
                self._sealed_at = -1
            _write_all(self._file, lines)
        except OSError as error:
            self._give_up(error)

    def _seal(self, last: str) -> None:
        """Writes the last line, in place of an earlier one."""
        if self._broken:
            return
        try:
            if self._sealed_at >= 0:
                os.ftruncate(self._file, self._sealed_at)
            else:
                self._sealed_at = os.fstat(self._file).st_size
            _write_all(self._file, [last])
        except OSError as error:
            self._give_up(error)

    def _create(self) -> None:
        """Makes the file with its first line: from now on a death is seen."""
        rank = this_rank()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                self._file = os.open(self._folder / f"rank-{rank.rank}.jsonl", flags, 0o644)
            except FileExistsError:
                self._file = os.open(self._folder / f"rank-{rank.rank}-{os.getpid()}.jsonl", flags, 0o644)
            _write_all(self._file, [json.dumps({"schema": SCHEMA, **rank._asdict(), "pid": os.getpid()})])
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._broken = True
        text = f"perfgate: the steps of this process are not recorded: {self._folder}: {error.strerror or error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def recorder() -> Recorder | None:
    """The recorder of this process, ``None`` where ``PERFGATE_STEPS_DIR`` is not set."""
    if not _found:
        with _lock:
            if not _found:
                folder = os.environ.get(STEPS_DIR)
                _found.append(Recorder(Path(folder).absolute(), os.environ.get(STEP_RANGE) or "step") if folder else None)
    return _found[0]


def this_rank() -> RankOf:
    """What torch.distributed says where the program has initialised it, else what the launcher's variables say."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and getattr(distributed, "is_initialized", bool)():
        local = os.environ.get("LOCAL_RANK", "")
        rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
        return RankOf(rank, world, int(local) if local.isdecimal() else None, "torch.distributed")
    for names in LAUNCHERS:
        rank_, world_, local = (os.environ.get(name, "") for name in names)
        if rank_.isdecimal():
            world = int(world_) if world_.isdecimal() else 1
            return RankOf(int(rank_), world, int(local) if local.isdecimal() else None, names[0])
    return RankOf(0, 1, None, "")


def _event() -> Any:
    """A CUDA event recorded now on the current stream; ``None`` where the program has no CUDA running, or captures a graph."""
    cuda = _cuda()
    with suppress(RuntimeError):  # the device failed: that is the program's to tell
        if cuda is not None and not cuda.is_current_stream_capturing():
            event = cuda.Event(enable_timing=True)
            event.record()
            return event
    return None


def _cuda() -> Any:
    """``torch.cuda`` where this process has initialised it, else ``None``."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and getattr(cuda, "is_initialized", bool)() else None


def _peaks() -> dict[str, int | None]:
    cuda = _cuda()
    with suppress(RuntimeError):  # of a device that failed
        if cuda is not None:
            return {"allocated_bytes": int(cuda.max_memory_allocated()), "reserved_bytes": int(cuda.max_memory_reserved())}
    return {"allocated_bytes": None, "reserved_bytes": None}


def _write_all(file: int, lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    while data:
        data = data[os.write(file, data) :]


def _at_process_end(active: Recorder) -> None:
    """Settles ``active`` when the process ends: a forked multiprocessing child runs its own finalizers, not atexit's."""
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:  # a forked child inherits the call
            active.settle(at_exit=True)

    atexit.register(end)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, end, exitpriority=0)


_lock = threading.Lock()
_found: list[Recorder | None] = []  # empty before the first look


def _after_fork() -> None:
    """What is open, buffered or locked in a forked child is its parent's: the child begins anew."""
    global _lock
    _lock = threading.Lock()
    _found.clear()


os.register_at_fork(after_in_child=_after_fork)
