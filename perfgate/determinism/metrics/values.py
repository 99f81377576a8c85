"""Scalars as training runs record them, with every bit kept."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_FORMATS = {"float64": "<d", "float32": "<f", "float16": "<e", "int64": "<q", "int32": "<i", "int16": "<h", "int8": "<b"}
_FORMATS |= {"uint64": "<Q", "uint32": "<I", "uint16": "<H", "uint8": "<B", "bool": "<?"}


@dataclass(frozen=True)
class Scalar:
    """One recorded number: its type and its bytes, little-endian."""

    dtype: str
    raw: bytes

    @classmethod
    def of(cls, value: float) -> Scalar:
        """A number from a text log, as float64: where a run writes ``1`` or ``1.0`` is no matter."""
        return cls("float64", struct.pack("<d", value))

    @property
    def value(self) -> float:
        """As a Python number."""
        if self.dtype == "bfloat16":
            return float(struct.unpack("<f", b"\0\0" + self.raw)[0])
        return float(struct.unpack(_FORMATS[self.dtype], self.raw)[0])

    def __str__(self) -> str:
        return f"{self.value!r} (0x{self.raw[::-1].hex()})"

    @classmethod
    def known(cls, dtype: str) -> bool:
        """Whether a type can be shown and subtracted."""
        return dtype in _FORMATS or dtype == "bfloat16"


Key = tuple[str, int, int]  # tag, step, occurrence: a restarted run may record one step twice


@dataclass
class Stream:
    """What one rank recorded, in file order, and what could not be compared."""

    scalars: dict[Key, Scalar] = field(default_factory=dict)
    not_scalars: set[str] = field(default_factory=set)  # tags of histograms, images, text
    most_digits: int = 0  # significant digits of the longest number with a fraction in a text log; 0 where there is none

    def add(self, tag: str, step: int, scalar: Scalar) -> None:
        """Appends one value; a step recorded again is another occurrence."""
        occurrence = 0
        while (tag, step, occurrence) in self.scalars:
            occurrence += 1
        self.scalars[tag, step, occurrence] = scalar

    def tags(self) -> Iterator[str]:
        """Every tag, once."""
        yield from dict.fromkeys(tag for tag, _, _ in self.scalars)
