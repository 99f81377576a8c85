"""Names that strangers wrote (kernels, ranges, commands) made harmless and short; every view sends them through here."""

from __future__ import annotations

import re
import unicodedata

ELLIPSIS = "…"
_LONGEST_LOOKED_AT = 4000  # a kernel name can be 100 kB of templates; what decides is at its front
_NAMESPACES = re.compile(r"(?:\(anonymous namespace\)::|<unnamed>::|\b[A-Za-z_]\w{0,80}::)+")
_RETURN_TYPE = re.compile(r"^(?:static |inline |__global__ )*void\s+")


def visible(text: str) -> str:
    r"""``text`` on one line, with everything that prints nothing or steers a terminal or the text's direction spelled out.

    Control characters, bidi and zero-width characters, line separators, private use and lone surrogates become ``\u202e``
    and the like; letters of every script stay.
    """
    return "".join(character if _prints(character) else _spelled(character) for character in text)


def shorten(name: str, limit: int = 60) -> str:
    """A kernel's name without return type, namespaces and parameters, cut at ``limit`` characters; visible characters only."""
    text = _RETURN_TYPE.sub("", name[:_LONGEST_LOOKED_AT].strip())
    text = _NAMESPACES.sub("", _without_parameters(text)).strip() or name[:_LONGEST_LOOKED_AT]
    return cut(visible(text), limit)


def cut(text: str, limit: int) -> str:
    """``text``, or its first ``limit - 1`` characters and an ellipsis."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + ELLIPSIS


def whole(name: str, limit: int = 2000) -> str:
    """The name in full, visible; what is beyond ``limit`` characters is counted instead (result.json keeps it)."""
    if len(name) <= limit:
        return visible(name)
    return f"{visible(name[:limit])}{ELLIPSIS} ({len(name) - limit:,} more characters in result.json)"


def _without_parameters(text: str) -> str:
    """``f<(int)4>(float*, int)`` is ``f<(int)4>``: the first parenthesis outside angle brackets ends the name."""
    depth = 0
    for position, character in enumerate(text):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif character == "(" and depth <= 0 and not text.startswith("(anonymous namespace)", position):
            return text[:position] if position else text
    return text


def _prints(character: str) -> bool:
    return character == " " or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
