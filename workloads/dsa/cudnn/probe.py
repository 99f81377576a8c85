"""Whether the stock kernel, and the method that the hooks wrap, are what they were made for; imports nothing heavy.

The hooks subclass a private class of an installed package. So versions are compared exactly, and the source of what is relied
upon is hashed: a changed method or signature is "unsupported", with the versions that work, and never runs.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from perfgate import Case

NEEDED = {  # exactly these; what else they need comes with them
    "nvidia-cudnn-frontend": "1.32.0",
    "nvidia-cutlass-dsl": "4.8.1",
    "apache-tvm-ffi": "0.1.15.post2",
}
MEND = "pip install perfgate[cudnn]"
MAJOR = 9  # the kernel is for Hopper alone
DIMS = (512, 576)
SOURCE = Path("deepseek_sparse_attention", "sparse_attention_backward", "dsa_bwd_sm90.py")
RELIED_UPON = {  # class.method: first 16 hex digits of the SHA-256 of its source
    "FlashAttentionDSABackwardSm90.__init__": "450923b221a678d3",
    "FlashAttentionDSABackwardSm90.__call__": "9d7a31c379571305",
    "FlashAttentionDSABackwardSm90.kernel": "65cff4cdc4e144c7",
    "FlashAttentionDSABackwardSm90.mma_wg1": "a49ec97336223290",  # the order of the chunks, who calls the scatter
    "FlashAttentionDSABackwardSm90.scatter_dkv_atomic": "1a339bb07f6bb086",
    "_FlashAttentionDSABackwardPreprocessSm90.__init__": "741705a634bb2d01",
    "_FlashAttentionDSABackwardPreprocessSm90.__call__": "cf4a8b33da100b92",
    "_FlashAttentionDSABackwardPostprocessSm90.__init__": "a02693173d435ca8",
    "_FlashAttentionDSABackwardPostprocessSm90.__call__": "2a61497b6922eddc",
    "_FlashAttentionDSABackwardPostprocessSm90._fake_to_smem": "45cdcf9871471206",  # the order of columns
}


@cache
def missing_packages() -> str:
    """Which packages are absent or of another version, with those that work, or ""."""
    wrong = []
    for name, wanted in NEEDED.items():
        try:
            have = version(name)
        except PackageNotFoundError:
            have = "not installed"
        if have != wanted:
            wrong.append(f"{name}=={wanted} ({have})")
    return f"needs {', '.join(wrong)}: {MEND}" if wrong else ""


def installed() -> bool:
    """Whether the packages are there in the versions that work."""
    return not missing_packages()


def methods(source: str) -> Iterator[tuple[str, str]]:
    """(class.method, its source from ``def`` on, without trailing blanks) of every class in ``source``."""
    lines = source.splitlines()
    for outer in ast.parse(source).body:
        if isinstance(outer, ast.ClassDef):
            for inner in outer.body:
                if isinstance(inner, ast.FunctionDef):
                    text = "\n".join(line.rstrip() for line in lines[inner.lineno - 1 : inner.end_lineno])
                    yield f"{outer.name}.{inner.name}", text


def digests(source: str) -> dict[str, str]:
    """The hash of each method of ``source``, as :data:`RELIED_UPON` holds it."""
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in methods(source)}


def source_file() -> Path | None:
    """The stock kernel's source file, found without importing the package."""
    found = PathFinder.find_spec("cudnn")
    places = (Path(place) / SOURCE for place in (found.submodule_search_locations or ())) if found else ()
    return next((place for place in places if place.is_file()), None)


@cache
def changed() -> str:
    """Which method that the hooks rely upon is not the one they were made for, or ""."""
    path = source_file()
    if path is None:
        return f"cudnn/{SOURCE} is not in the installed package: the hooks were made for {_made_for()}"
    have = digests(path.read_text(encoding="utf-8"))
    for name, wanted in RELIED_UPON.items():
        if have.get(name) != wanted:
            state = "has changed" if name in have else "is gone"
            return f"{name} of the installed cuDNN frontend {state}: the hooks were made for {_made_for()}"
    return ""


def _made_for() -> str:
    return " with ".join(f"{name} {wanted}" for name, wanted in NEEDED.items())


def missing(case: Case, device: str) -> str:
    """Why the stock kernel can't run ``case`` on ``device`` (packages, exact compute major, shapes), or ""."""
    if missing_packages():
        return missing_packages()
    if not device.startswith("cuda"):
        return "cuDNN's kernel needs a Hopper GPU"
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    if major != MAJOR:
        return f"cuDNN's kernel here is for compute capability {MAJOR}.x: this card has {major}.{minor}"
    return unfit(case)


def unfit(case: Case) -> str:
    """Which of the case's shapes the stock kernel can't take, or ""."""
    if case.dim not in DIMS or case.get("dim_v", 512) != 512:
        return f"cuDNN's kernel takes heads of {' or '.join(map(str, DIMS))} with values of 512, not {case.dim}"
    if case.heads < 2 or case.heads % 4:
        return f"cuDNN's kernel needs a multiple of 4 heads: rows of statistics are read 16 bytes at a time, not {case.heads}"
    return ""
