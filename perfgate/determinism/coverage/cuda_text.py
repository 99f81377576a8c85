"""Kernels in C++ and CUDA files: ``__global__`` functions and ``<<<...>>>`` launches outside comments and strings."""

from __future__ import annotations

import re

from perfgate.determinism.coverage.syntax import Site

SUFFIXES = frozenset({".cu", ".cuh", ".hip", ".h", ".hh", ".hpp", ".inl", ".cc", ".cpp", ".cxx"})

_NOT_CODE = re.compile(rb'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_KERNEL = re.compile(rb"__global__|<<<")


def kernel_sites(content: bytes) -> list[Site]:
    """Where the file defines or launches a kernel."""
    if b"__global__" not in content and b"<<<" not in content:
        return []
    code = _NOT_CODE.sub(lambda found: b"\n" * found.group().count(b"\n"), content)
    return [
        Site(code.count(b"\n", 0, found.start()) + 1, "cuda-ext", found.group().decode()) for found in _KERNEL.finditer(code)
    ]
