"""Compiled kernels kept on disk: one takes ten seconds to compile, and every process would do so again.

A :class:`Kept` is the dictionary in which a launcher keeps its kernels. What it lacks it looks for on disk, what it is given it
writes there: an object file of CuTe DSL's own export, loaded by its own loader. A file's name holds the hash of everything that
the code follows from, and the hash of the file: no stale or damaged file is ever loaded.

The folder is ``$CUTE_DSL_CACHE_DIR``, else perfgate's place in the user's cache. ``CUTE_DSL_DISABLE_FILE_CACHING=1``, which is
CuTe DSL's own switch, turns all of it off. Nothing here ever fails a run: what can't be kept or loaded is told, and compiled.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from . import probe

FUNCTION = "kernel"
Key = tuple[Any, ...]


def folder() -> Path | None:
    """Where object files lie; ``None`` where nothing is to be kept."""
    if os.environ.get("CUTE_DSL_DISABLE_FILE_CACHING", "").lower() not in ("", "0", "false", "off"):
        return None
    if given := os.environ.get("CUTE_DSL_CACHE_DIR"):
        return Path(given)
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", ""), ".cache"))
    return home / "perfgate" / "cute" if home.is_absolute() else None


@cache
def arch() -> str:
    """What is compiled for: the device that is current first, or ``$CUTE_DSL_ARCH``."""
    import torch

    given = os.environ.get("CUTE_DSL_ARCH", "")
    return given or "sm_{}{}a".format(*torch.cuda.get_device_capability())


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def name_of(key: Key, sources: tuple[Path, ...]) -> str:
    """The hash of all that a kernel's code follows from: its key, package versions, the stock source, ``sources``, the card."""
    stock = probe.source_file()
    files = ([] if stock is None else [stock]) + list(sources)
    told = [*map(repr, key), arch(), platform.machine(), *(f"{one}=={made}" for one, made in probe.NEEDED.items())]
    return hashlib.sha256("\n".join([*told, *map(_digest, files)]).encode()).hexdigest()[:32]


class Kept(dict[Key, Any]):
    """Compiled kernels by key, with the disk behind it. ``sources``: files that decide on the code beside the stock one."""

    def __init__(self, kind: str, sources: tuple[Path, ...]) -> None:
        super().__init__()
        self._kind, self._sources = kind, sources

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        found = self._read(key) if isinstance(key, tuple) else None
        if found is None:
            return False
        super().__setitem__(key, found)  # type: ignore[index]
        return True

    def __setitem__(self, key: Key, compiled: Any) -> None:
        super().__setitem__(key, compiled)
        place = folder()
        if place is not None:
            try:
                self._write(place, key, compiled)
            except Exception as error:  # whatever it is, the compiled kernel is there
                warnings.warn(f"a compiled kernel is not kept on disk: {error}", stacklevel=2)

    def _name(self, key: Key) -> str:
        return name_of((self._kind, *key), self._sources)

    def _read(self, key: Key) -> Any:
        place = folder()
        if place is None:
            return None
        for path in sorted(place.glob(f"{self._name(key)}-*.o")):
            try:
                if path.stem.rpartition("-")[2] == hashlib.sha256(path.read_bytes()).hexdigest()[:32]:
                    return load(path)
            except Exception as error:  # then it is compiled
                warnings.warn(f"{path} can't be loaded, its kernel is compiled again: {error}", stacklevel=3)
        return None

    def _write(self, place: Path, key: Key, compiled: Any) -> None:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(suffix=".o", prefix=".", dir=place)
        os.close(handle)
        try:
            compiled.export_to_c(unfinished, function_name=FUNCTION)
            content = hashlib.sha256(Path(unfinished).read_bytes()).hexdigest()[:32]
            os.replace(unfinished, place / f"{self._name(key)}-{content}.o")
        finally:
            Path(unfinished).unlink(missing_ok=True)


def load(path: Path) -> Any:
    """The function of an object file that :class:`Kept` wrote; it takes what the compiled kernel took."""
    import cutlass.cute as cute

    return getattr(cute.runtime.load_module(str(path), enable_tvm_ffi=True), FUNCTION)


@cache
def behind_the_stock_wrapper() -> None:
    """Puts the disk behind the stock wrapper's own dictionaries of compiled kernels, once; what it compiles stays its own."""
    from cudnn.deepseek_sparse_attention.sparse_attention_backward import _interface_sm90

    wrapper = _interface_sm90.flash_attn_bwd_sm90
    for name in ("compile_cache_pre", "compile_cache", "compile_cache_post"):
        if type(getattr(wrapper, name, None)) is dict:
            setattr(wrapper, name, Kept(name, (Path(_interface_sm90.__file__),)))
