"""Range names as users want them grouped: without the counters that PyTorch appends, by a pattern, or in three buckets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from perfgate.errors import UsageError

Bucket = Literal["forward", "backward", "op"]
BUCKETS: tuple[Bucket, ...] = ("forward", "backward", "op")

_COUNTERS = r",\s*(?:seq|op_id)\s*=\s*-?\d+"  # compiled by re at first use: not every command needs them
_BACKWARD = r"backward|(?<![a-z])bwd(?![a-z])|(?<![a-z])[dw]grad(?![a-z])"
_TELLING = ("forward", "backward", "fwd", "bwd", "grad")
_FORWARD = r"forward|(?<![a-z])fwd(?![a-z])"


def display_name(domain: str, name: str) -> str:
    """``domain:name``, plain in the default domain."""
    return f"{domain}:{name}" if domain else name


def strip_counters(name: str) -> str:
    """``aten::mul, seq = 3, op_id = 322567`` is ``aten::mul``."""
    return re.sub(_COUNTERS, "", name)


def bucket(name: str) -> Bucket:
    """Which part of a training step a range is, by the words in its name; one that names both parts is an ``op``."""
    if not any(word in name.lower() for word in _TELLING):  # most are none: no pattern need be compiled
        return "op"
    backward, forward = (bool(re.search(pattern, name, re.IGNORECASE)) for pattern in (_BACKWARD, _FORWARD))
    if backward == forward:
        return "op"
    return "backward" if backward else "forward"


def grouping(pattern: str | None, *, strip: bool) -> Callable[[str], str]:
    """What a range is called in a table: ``strip`` drops counters, then ``pattern`` keeps what its first group (or it) finds.

    A name that the pattern does not find stays as it is. Raises :class:`UsageError` for what is no regular expression.
    """
    compiled = None if pattern is None else compile_pattern(pattern)

    def name(text: str) -> str:
        text = strip_counters(text) if strip else text
        found = compiled.search(text) if compiled else None
        if found is None:
            return text
        return (found.group(1) if found.re.groups else found.group(0)) or text

    return name


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression. Raises :class:`UsageError` where it is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        mend = "quote it, and escape ( [ + * with a backslash"
        raise UsageError(f"{pattern!r} is not a regular expression: {error}", mend) from None
