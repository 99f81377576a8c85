"""Other work on the GPU while a kernel replays, so that its blocks finish in another order than on an idle card."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

GEMM_SIZES = (768, 1536)  # one stream each: under one wave of an H100 and about one, so SMs free up irregularly
COPY_BYTES = 64 << 20
IN_FLIGHT = 8  # launches queued per stream: enough that a stream never runs dry between refills


class ContentionWarning(UserWarning):
    """Contention was asked for and there is none."""


@dataclass
class Contention:
    """What ran beside the replays. ``note`` says why there was none ("" where there was)."""

    note: str = ""
    launches: int = 0  # GEMMs and copies completed on the side streams

    @property
    def active(self) -> bool:
        return not self.note


@contextmanager
def contention(device: torch.device | str | int | None = None) -> Iterator[Contention]:
    """Keeps side streams of bf16 matrix products and one of copies busy on ``device`` for the length of a ``with`` block.

    A :class:`ContentionWarning` says so where it can't work: on the CPU, and with ``CUDA_DEVICE_MAX_CONNECTIONS=1``, where
    all streams share one hardware queue. An error on a side stream is raised when the block ends, never lost.
    """
    target = torch.device("cuda" if device is None else device)
    note = why_none(target)
    if note:
        warnings.warn(note, ContentionWarning, stacklevel=3)
        yield Contention(note)
        return
    if target.index is None:
        target = torch.device("cuda", torch.cuda.current_device())
    result, stop, errors = Contention(), threading.Event(), list[Exception]()
    ready = threading.Event()

    def work() -> None:
        try:
            _keep_busy(target, result, stop, ready)
        except Exception as error:  # carried to the caller's thread below
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work, name="perfgate-contention", daemon=True)
    thread.start()
    try:
        ready.wait()
        if not errors:
            yield result
    finally:
        stop.set()
        thread.join()
    if errors:
        raise RuntimeError(f"contention failed: {errors[0]}") from errors[0]


def why_none(device: torch.device) -> str:
    """Why there can be no contention on ``device``; "" where there can."""
    if device.type != "cuda":
        return f"no contention on {device.type}: side streams need a CUDA device"
    if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        return "no contention: CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams into one hardware queue; unset it for this test"
    return ""


def _keep_busy(device: torch.device, result: Contention, stop: threading.Event, ready: threading.Event) -> None:
    torch.cuda.set_device(device)
    streams = [torch.cuda.Stream(device) for _ in (*GEMM_SIZES, COPY_BYTES)]
    squares = [torch.ones(size, size, dtype=torch.bfloat16, device=device) for size in GEMM_SIZES]
    products = [torch.empty_like(square) for square in squares]
    source, target = (torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    torch.cuda.current_stream(device).synchronize()
    queued: list[list[torch.cuda.Event]] = [[] for _ in streams]
    while not stop.is_set():
        for index, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                for _ in range(IN_FLIGHT):
                    if index < len(squares):
                        torch.mm(squares[index], squares[index], out=products[index])
                    else:
                        target.copy_(source, non_blocking=True)
                queued[index].append(stream.record_event())
        ready.set()
        for events in queued:
            if len(events) > 1:
                events.pop(0).synchronize()
                result.launches += IN_FLIGHT
    for stream in streams:
        stream.synchronize()
    result.launches += IN_FLIGHT * sum(len(events) for events in queued)
