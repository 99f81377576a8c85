"""Which tags tell time, speed or memory, and are left out: two equal runs never take the same time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

_WORDS = (
    "time|times|timer|timers|timestamp|datetime|date|elapsed|duration|latency|eta|seconds|secs?|msecs?|ms|wall|walltime|"
    "throughput|speed|fps|tps|tgs|mfu|hfu|flops|tflops|gflops|tok_s|samples_s|it_s"
)
DEFAULT_PATTERNS = (
    rf"(^|[^a-z])({_WORDS})([^a-z]|$)",
    r"(tokens?|samples?|iters?|iterations?|steps?|batches)[^a-z]*(per|/)[^a-z]*(s|secs?|seconds?|gpu|device|day)([^a-z]|$)",
    r"(max|peak|gpu|cuda|allocated|reserved|used|cpu|host)[^a-z]*mem(ory)?([^a-z]|$)",
    r"(^|[^a-z])mem(ory)?[^a-z]*(max|peak|allocated|reserved|usage|used|bytes|gb|mb|gib|mib|percent|$)",
)
_DEFAULT = tuple(re.compile(pattern) for pattern in DEFAULT_PATTERNS)


def excluded(tag: str, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> bool:
    """Whether ``tag`` is left out: by default where it tells time, speed or memory; ``include`` beats ``exclude``.

    ``exclude`` and ``include`` are shell patterns (``timers/*``), compared without regard to case.
    """
    name = tag.lower()
    if any(fnmatchcase(name, pattern.lower()) for pattern in include):
        return False
    if any(fnmatchcase(name, pattern.lower()) for pattern in exclude):
        return True
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tag).lower()  # stepTime -> step_time
    return any(pattern.search(words) for pattern in _DEFAULT)
