"""What makes a file a kernel file: the call sites to look for, per kind, and how a project adds or drops some.

Written as ``package.module.name`` (that very object is called, or decorates), ``package.*`` (anything of that package is
called or subclassed) or ``.method`` (a method of that name is called on anything that isn't another library).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise

KINDS = ("triton", "torch.compile", "cuda-ext", "te-wrapper", "torch-op", "external-lib", "tilelang", "cute", "dispatch")

DEFAULTS: dict[str, tuple[str, ...]] = {
    "triton": (
        "triton.jit",
        "triton.autotune",
        "triton.heuristics",
        "triton.experimental.gluon.jit",
        "torch.library.triton_op",
        "torch.library.wrap_triton",
    ),
    "tilelang": ("tilelang.jit", "tilelang.compile", "tilelang.language.prim_func"),
    "cute": ("cutlass.cute.jit", "cutlass.cute.kernel", "cutlass.cute.compile", "cuda.tile.kernel", "cuda.tile.launch"),
    "torch.compile": ("torch.compile", "torch._dynamo.optimize"),
    "cuda-ext": (
        "torch.utils.cpp_extension.CUDAExtension",
        "torch.utils.cpp_extension.load",
        "torch.utils.cpp_extension.load_inline",
        "torch.cuda._compile_kernel",
        "numba.cuda.jit",
        "cupy.RawKernel",
        "cupy.RawModule",
        "cupy.ElementwiseKernel",
        "cupy.ReductionKernel",
        "warp.kernel",
        "helion.kernel",
    ),
    "te-wrapper": ("transformer_engine.*", "transformer_engine_torch.*"),
    "torch-op": (
        ".scatter_add",
        ".scatter_add_",
        ".scatter_reduce",
        ".scatter_reduce_",
        ".index_add",
        ".index_add_",
        ".index_reduce",
        ".index_reduce_",
        ".index_put",
        ".index_put_",
        ".put_",
        ".bincount",
        "torch.nn.functional.embedding",
        "torch.nn.functional.embedding_bag",
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.nn.functional.grid_sample",
        "torch.nn.functional.ctc_loss",
    ),
    "external-lib": (
        "flash_attn.*",
        "flash_attn_interface.*",
        "flash_attn_2_cuda.*",
        "flash_mla.*",
        "flashinfer.*",
        "xformers.ops.*",
        "causal_conv1d.*",
        "causal_conv1d_cuda.*",
        "mamba_ssm.*",
        "selective_scan_cuda.*",
        "fla.*",
        "grouped_gemm.*",
        "deep_gemm.*",
        "deep_ep.*",
        "liger_kernel.*",
        "apex.*",
        "cudnn.*",
        "tensorrt_llm.*",
    ),
}


@dataclass(frozen=True)
class Condition:
    """Only a call that passes this argument counts: by keyword, or as the method's positional argument ``position``."""

    keyword: str
    position: int


CONDITIONS = {
    ".index_put": Condition("accumulate", 2),
    ".index_put_": Condition("accumulate", 2),
    ".put_": Condition("accumulate", 2),
    ".bincount": Condition("weights", 0),
}


@dataclass(frozen=True)
class Patterns:
    """The patterns in force, indexed for look-ups by dotted name."""

    exact: Mapping[str, str]  # "triton.jit" -> kind
    packages: Mapping[str, str]  # "flash_attn" -> kind
    globs: Mapping[str, str]  # "mylib.fused_*" -> kind
    methods: Mapping[str, str]  # "scatter_add_" -> kind

    @classmethod
    def of(cls, by_kind: Mapping[str, Iterable[str]]) -> Patterns:
        """Sorts patterns by their form."""
        exact, packages, globs, methods = {}, {}, {}, {}
        for kind, patterns in by_kind.items():
            for pattern in patterns:
                if pattern.startswith("."):
                    methods[pattern[1:]] = kind
                elif pattern.endswith(".*") and "*" not in pattern[:-2]:
                    packages[pattern[:-2]] = kind
                elif any(sign in pattern for sign in "*?["):
                    globs[pattern] = kind
                else:
                    exact[pattern] = kind
        return cls(exact, packages, globs, methods)

    def kind_of(self, dotted: str) -> str:
        """The kind of a dotted name; "" where no pattern has it."""
        if dotted in self.exact:
            return self.exact[dotted]
        parts = dotted.split(".")
        for end in range(len(parts) - 1, 0, -1):
            kind = self.packages.get(".".join(parts[:end]))
            if kind:
                return "" if _asks(parts[-1]) else kind
        return next((kind for glob, kind in self.globs.items() if fnmatchcase(dotted, glob)), "")

    def may_match(self, content: bytes) -> bool:
        """A cheap look at the bytes: ``False`` only where no pattern can match. Most files end here.

        A dotted name is put together from an import of its package and from words that stand in the file.
        """
        if any(part in content for part in self._method_parts) and any(_word(name, content) for name in self._method_names):
            return True
        return any(
            any(_may_name(root, words, content) for words in self._names_by_root.get(root, ()))
            for root in _imported_packages(content)
        )

    @cached_property
    def _method_names(self) -> tuple[bytes, ...]:
        return tuple(method.encode() for method in self.methods)

    @cached_property
    def _method_parts(self) -> tuple[bytes, ...]:
        """The method names that contain no other one: ``scatter_add`` stands for ``scatter_add_`` too."""
        names = self._method_names
        return tuple(name for name in names if not any(other != name and other in name for other in names))

    @cached_property
    def _names_by_root(self) -> dict[bytes, list[list[bytes]]]:
        """Per package, the words that each of its patterns needs in the file."""
        roots: dict[bytes, list[list[bytes]]] = {}
        for dotted in (*self.exact, *self.packages, *self.globs):
            root, *words = (part.encode() for part in dotted.split(".") if not set(part) & set("*?["))
            roots.setdefault(root, []).append(words)
        return roots


_REGEX_MODULE = re.compile(rb"\bre\.$")


def _word(word: bytes, content: bytes) -> bool:
    """Whether ``word`` stands alone somewhere, other than as ``re.compile``. Plain finds: many times faster than a regex."""
    at = content.find(word)
    while at >= 0:
        end = at + len(word)
        alone = not _WORD_BYTE.fullmatch(content[at - 1 : at]) and not _WORD_BYTE.fullmatch(content[end : end + 1])
        if alone and not _REGEX_MODULE.search(content[max(at - 4, 0) : at]):
            return True
        at = content.find(word, end)
    return False


_WORD_BYTE = re.compile(rb"\w")


def _may_name(root: bytes, words: list[bytes], content: bytes) -> bool:
    """Whether the file can name ``root.words``: ``root.word`` stands there, its word is imported, or root has an alias."""
    if not all(_word(word, content) for word in words):
        return False
    if len(words) != 1 or root + b"." + words[0] in content or re.search(root + rb"\s+as\s", content):
        return True
    imports = re.findall(root + rb"\s+import\s+(\([^)]*|[^\n]*)", content)
    return any(b"*" in names or _word(words[0], names) for names in imports)


_FROM = re.compile(rb"\bfrom\s+(\w+)")
_FIRST_WORD = re.compile(rb"\s*(\w+)")


def _imported_packages(content: bytes) -> set[bytes]:
    """The top-level packages that the file may import; text that only looks like an import does no harm here."""
    found = set()
    pieces = content.split(b"import")
    for before, after in pairwise(pieces):
        origin = _FROM.search(before, before.rfind(b"\n") + 1)
        items = [] if origin else after.partition(b"\n")[0].split(b",")
        found |= {word.group(1) for word in (origin, *map(_FIRST_WORD.match, items)) if word}
    return found


def _asks(name: str) -> bool:
    """Whether a function of a kernel library only asks or sets something, and computes nothing."""
    return name.startswith(("is_", "has_", "get_", "set_", "check_", "supports_")) or "version" in name or "available" in name
