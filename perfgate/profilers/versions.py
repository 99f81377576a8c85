"""Version strings as numbers."""

from __future__ import annotations


def numbers(text: str) -> tuple[int, ...]:
    """``"2022.4.2.1-df98"`` as ``(2022, 4, 2, 1)``; () where it starts with no number."""
    digits = []
    for part in text.split("-")[0].split("+")[0].split("."):
        if not part.isdigit():
            break
        digits.append(int(part))
    return tuple(digits)
