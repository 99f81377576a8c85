"""What a program opens of its own: ``perfgate.range`` marks a stretch of it, ``perfgate.steps`` every turn of its loop.

Two lines make a program measurable, and without a profiler or a timing run they do next to nothing::

    for batch in perfgate.steps(loader, tokens=lambda batch: batch.numel()):
        with perfgate.range("forward"):
            loss = model(batch)

The ranges are NVTX push/pop ranges in domain ``perfgate.user``; without a profiler an NVTX call does nothing, and without the
nvtx package there is none. torch is never imported. Under ``PERFGATE_STEPS_DIR`` the steps are also recorded:
:mod:`perfgate.step_recorder`.

- Ranges nest, also in themselves; a range is closed by whatever ends its block: its end, ``break``, an exception.
- Each thread has its own ranges. In a program of coroutines a range must not be open across an ``await``: NVTX ranges of one
  thread close in reverse order, whatever task opened them.
- A loop over ``steps`` that is left early closes its step at once, as long as the loop alone holds the iterator. With an
  iterator of your own (``next(batches)``) a step ends where the next one is asked for, the last one with the process: it is not
  measured. A step that another thread closes (the garbage collector's) leaves its NVTX range unfinished.
- Open them outside of what ``torch.compile`` compiles and of a CUDA graph's capture, like every NVTX range.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from perfgate.errors import UsageError
from perfgate.step_recorder import Ended, OpenStep, Recorder, recorder

DOMAIN = "perfgate.user"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Tokens = int | Callable[[T], int] | None


class _Opened(NamedTuple):
    thread: int
    recorder: Recorder | None
    step: OpenStep | None


class Range:
    """A named stretch of the program, as ``with perfgate.range("forward"):`` or as a decorator of a function or generator.

    The range with the step's name (``PERFGATE_STEP_RANGE``, else ``"step"``) is a step; where steps are recorded, so is it.
    ``tokens`` is how many this rank works on in it. Raises :class:`UsageError` for an empty name and for coroutine functions.
    """

    _wait_ns: int | None = None

    def __init__(self, name: str, *, tokens: int | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"perfgate.range({name!r}): a range needs a name", 'write perfgate.range("forward")')
        self._name, self._tokens = name, tokens
        self._opened: dict[int, list[_Opened]] = {}  # by thread

    def __enter__(self) -> Range:
        _mark(self._name).__enter__()
        active = recorder()
        step = active.begin(self._name) if active is not None else None
        own = threading.get_ident()
        self._opened.setdefault(own, []).append(_Opened(own, active, step))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        own = threading.get_ident()
        mine = self._opened.get(own)
        opened = mine.pop() if mine else next(others for others in self._opened.values() if others).pop()
        if opened.recorder is not None and opened.step is not None:
            ended: Ended = "ok" if kind is None else "left" if kind is GeneratorExit else "raised"
            opened.recorder.end(opened.step, ended, tokens=self._tokens, wait_ns=self._wait_ns)
        if opened.thread == own:
            _mark(self._name).__exit__(None, None, None)

    def __call__(self, function: F) -> F:
        """``function`` with every call of it in this range; of a generator function: from its first turn to its last."""
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"perfgate.range({self._name!r}) decorates the coroutine function {function.__name__}",
                "tasks interleave on one thread, NVTX ranges can't: mark what runs between two awaits",
            )

        @functools.wraps(function)
        def generator(*arguments: Any, **named: Any) -> Any:
            with self._anew():
                return (yield from function(*arguments, **named))

        @functools.wraps(function)
        def inner(*arguments: Any, **named: Any) -> Any:
            with self._anew():
                return function(*arguments, **named)

        return generator if inspect.isgeneratorfunction(function) else inner  # type: ignore[return-value]

    def _anew(self) -> Range:
        return Range(self._name, tokens=self._tokens)


class _Step(Range):
    """One turn of a loop over :func:`steps`."""

    def __init__(self, name: str, tokens: int | None, wait_ns: int) -> None:
        super().__init__(name, tokens=tokens)
        self._wait_ns = wait_ns


class Steps(Generic[T]):
    """What :func:`steps` returns: iterable as often as its loader, and as long."""

    def __init__(self, loader: Iterable[T], tokens: Tokens[T], name: str) -> None:
        Range(name)  # a bad name is told here, not in the loop
        self._loader, self._tokens, self._name = loader, tokens, name

    def __len__(self) -> int:
        if not isinstance(self._loader, Sized):
            raise TypeError(f"perfgate.steps: {type(self._loader).__name__} has no length")
        return len(self._loader)

    def __iter__(self) -> Iterator[T]:
        batches = iter(self._loader)
        try:
            while True:
                began = time.perf_counter_ns()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                waited = time.perf_counter_ns() - began
                with _Step(self._name, self._tokens(batch) if callable(self._tokens) else self._tokens, waited):
                    yield batch
        finally:
            active = recorder()
            if active is not None:
                active.settle()


def steps(loader: Iterable[T], *, tokens: Tokens[T] = None, name: str = "step") -> Steps[T]:
    """``loader``'s batches, each turn of the loop over them in a range ``name``: a step where that is the step's name.

    ``tokens`` is how many one step works on, on this rank: a number, or a function of the batch. The wait for the loader lies
    outside of the range and is recorded beside it. A step that is left by ``break`` or an exception is recorded as such.
    Raises :class:`UsageError` for an empty name.
    """
    return Steps(loader, tokens, name)


@functools.lru_cache(maxsize=4096)
def _mark(name: str) -> Any:
    """The nvtx package's range of that name; one that does nothing where the package is missing."""
    annotate = _annotate()
    return nullcontext() if annotate is None else annotate(name, domain=DOMAIN)


@functools.cache
def _annotate() -> Any:
    try:
        from nvtx import annotate
    except ImportError:
        if os.environ.get("NVTX_INJECTION64_PATH"):  # a profiler that listens and hears nothing is worth a word
            text = "perfgate.range: a profiler listens, but the nvtx package is not installed: no range is recorded"
            warnings.warn(f"{text}; pip install 'nvtx<0.2.12'", RuntimeWarning, stacklevel=2)
        return None
    return annotate
