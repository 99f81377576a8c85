"""What a child may know of our environment.

Profilers store all of it in their files, tokens included, so our worker gets a list of what is let through.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from perfgate.model import Mode

ALLOWED = frozenset(
    {
        # finding programs, modules and libraries
        "PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH",
        "CC", "CXX", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT",
        # locale, time, scratch space
        "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
        # which GPU and how CUDA starts
        "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_CACHE_PATH",
        "CUDA_CACHE_DISABLE", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE",
        # what changes kernels or their speed: both arms get the same
        "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_CUDA_ARCH_LIST", "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR", "TRITON_INTERPRET", "TRITON_CACHE_DIR", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH",
        "CUTE_DSL_CACHE_DIR", "CUTE_DSL_DISABLE_FILE_CACHING",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
        "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDNN_LIBRARY_PATH",
    }
)  # fmt: skip

_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


def for_worker(mode: Mode, *, run_folder: Path, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of our own worker: :data:`ALLOWED`, the mode's variables (a project's own too), shared compile caches.

    flash-attn-4 keeps its kernels on disk only where it is told to: else each child compiles them for ten seconds apiece.
    """
    from perfgate.determinism.contract import variables
    from perfgate.determinism.project import contract_of

    environment = for_tools(inherited)
    for name, value in variables(mode, contract_of(Path.cwd())).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    environment["TRITON_CACHE_DIR"] = str(triton_cache(run_folder, inherited))
    environment.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    environment.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(_cache("flash-attention", run_folder, inherited)))
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONFAULTHANDLER"] = "1"
    return environment


def for_tools(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of nsys, its importer and other tools: :data:`ALLOWED` alone."""
    return {name: value for name, value in inherited.items() if name in ALLOWED}


def without_secrets(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a user's own command: all of ours but what its name says is a secret."""
    return {name: value for name, value in inherited.items() if not _SECRET.search(name)}


def triton_cache(run_folder: Path, inherited: Mapping[str, str] = os.environ) -> Path:
    """One folder for all children, and for later runs (entries are keyed by source, so sharing is safe).

    $TRITON_CACHE_DIR, else perfgate's own place in the user's cache, else (no writable home) the run directory.
    """
    given = inherited.get("TRITON_CACHE_DIR")
    return Path(given) if given else _cache("triton", run_folder, inherited)


def _cache(name: str, run_folder: Path, inherited: Mapping[str, str]) -> Path:
    home = Path(inherited.get("XDG_CACHE_HOME") or os.path.join(inherited.get("HOME", ""), ".cache"))
    folder = home / "perfgate" / name
    return folder if home.is_absolute() and _writable(folder) else (run_folder / f"{name}-cache").resolve()


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
