"""torch's determinism flags: read, set, and put back. Importing this module does not import torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

COMPILER = "torch._inductor.config"
COMPILER_VARIABLE = "TORCHINDUCTOR_DETERMINISTIC"


def flags() -> dict[str, bool]:
    """The flags as they stand."""
    import torch
    import torch.utils.deterministic

    filling: Any = torch.utils.deterministic
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": filling.fill_uninitialized_memory,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
    }


def flags_of(deterministic: bool, memory_fill: bool = False) -> dict[str, bool]:
    """The flags of a mode. ``warn_only`` is never on: with it an op that can't be deterministic stays racy and the run goes on.

    ``cudnn.benchmark`` is off in both: it picks an algorithm by timing, which is a difference of its own.
    """
    return {
        "deterministic_algorithms": deterministic,
        "warn_only": False,
        "fill_uninitialized_memory": memory_fill,
        "cudnn_benchmark": False,
        "cudnn_deterministic": deterministic,
    }


def set_flags(wanted: Mapping[str, bool]) -> None:
    """Sets every flag of :func:`flags`."""
    import torch
    import torch.utils.deterministic

    filling: Any = torch.utils.deterministic
    now = flags()
    if any(now[name] != wanted[name] for name in ("deterministic_algorithms", "warn_only")):
        _switch(wanted["deterministic_algorithms"], wanted["warn_only"])
    filling.fill_uninitialized_memory = wanted["fill_uninitialized_memory"]
    torch.backends.cudnn.benchmark = wanted["cudnn_benchmark"]
    torch.backends.cudnn.deterministic = wanted["cudnn_deterministic"]


def _switch(enabled: bool, warn_only: bool) -> None:
    """``torch.use_deterministic_algorithms`` without the import of torch's compiler that it does to set the same flag there.

    The import takes seconds in every child. Where nothing has imported the compiler, the variable that it reads when it is
    imported says the same; where something has, or torch lacks the parts, torch's own call does all.
    """
    import torch

    direct = getattr(torch._C, "_set_deterministic_algorithms", None)
    if direct is None or COMPILER in sys.modules:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    else:
        os.environ[COMPILER_VARIABLE] = "1" if enabled else "0"
        direct(enabled, warn_only=warn_only)


@contextmanager
def deterministic_algorithms(enabled: bool = True, *, memory_fill: bool = False) -> Iterator[None]:
    """Sets torch's flags on or off for the length of a ``with`` block; restored after exceptions and when nested.

    The environment is left alone. This is for a test that compares both paths of one op in one process; the arms of a gate
    are fresh processes under :func:`perfgate.determinism.contract.apply`.
    """
    before = flags()
    try:
        set_flags(flags_of(enabled, memory_fill))
        yield
    finally:
        set_flags(before)
