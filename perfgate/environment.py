"""Where a run took place, so that it can be compared with another one: card, versions, commit.

Holds no host name, no path, no user name and no serial number, for it is stored in ``result.json`` and published. torch is
never imported: versions come from the installed packages' metadata.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from perfgate import __version__
from perfgate.nvml import Segment, describe, read_segment
from perfgate.segments import one_sided, segment_guard

__all__ = ["Difference", "Segment", "fingerprint", "one_sided", "segment", "segment_guard", "unlike"]

PACKAGES = ("torch", "triton", "nvtx", "numpy")

# What can change a time or a bit by itself. Not the commit (it is what one compares), not which card of a kind it was.
MATTERS = (
    "device",
    "gpu.name",
    "gpu.driver",
    "gpu.power_limit_w",
    "gpu.sm_max_mhz",
    "gpu.memory_max_mhz",
    "gpu.application_sm_mhz",
    "gpu.ecc",
    "gpu.mig",
    "cpu.name",  # only where device is a CPU: see unlike
    "cuda",
    "torch",
    "triton",
    "nsys",
)


class Difference(NamedTuple):
    """One field that differs: ``gpu.driver: '580.1' against '575.9'``."""

    field: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.a!r} against {self.b!r}"


def fingerprint(device: str) -> dict[str, Any]:
    """The environment as ``result.json`` stores it. What could not be learnt is ``None``, with words in ``warnings``."""
    warnings = []
    gpu: dict[str, Any] | None = None
    if device.startswith("cuda"):
        gpu, problem = describe(device)
        if problem:
            warnings.append(problem)
    nsys, problem = _nsys_version()
    if problem and gpu is not None:
        warnings.append(problem)
    return {
        "device": device.partition(":")[0],
        "gpu": gpu,
        "cpu": {"name": _cpu_name(), "cores": _cores()},
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "perfgate": __version__,
        **{name: _installed(name) for name in PACKAGES},
        "cuda": torch_cuda(),
        "nsys": nsys,
        "git": git_state(Path.cwd()),
        "warnings": warnings,
    }


def segment(device: str) -> Segment:
    """The card's clocks, temperature, throttle reasons, power limit and other processes, as they stand now."""
    return read_segment(device)


def unlike(a: dict[str, Any], b: dict[str, Any]) -> tuple[Difference, ...]:
    """The fields that matter for a comparison of two runs and differ between their fingerprints; () where none does.

    A field that only one of them knows differs.
    """
    fields = [field for field in MATTERS if field != "cpu.name" or "cpu" in (a.get("device"), b.get("device"))]
    pairs = [Difference(field, _at(a, field), _at(b, field)) for field in fields]
    return tuple(pair for pair in pairs if pair.a != pair.b)


def _at(tree: dict[str, Any], field: str) -> Any:
    value: Any = tree
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def torch_cuda() -> str | None:
    """The CUDA version that torch was built with, read from its ``version.py`` without importing it; ``None`` for CPU."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def _nsys_version() -> tuple[str | None, str]:
    from perfgate.errors import ProfilerError
    from perfgate.profilers.nsys_found import find_nsys, probe

    try:
        return probe(find_nsys()).version, ""
    except ProfilerError as error:
        return None, error.text


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    match = re.search(r"^(?:model name|Processor)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def _cores() -> int | None:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the repository around ``folder``, whether anything in it differs from that, and from what.

    ``changes`` digests the differences, so that two dirty runs of unlike code can be told apart. ``None`` outside of git.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    status = _git(folder, "status", "--porcelain") or b""
    changes = hashlib.sha256(status + (_git(folder, "diff", "HEAD") or b"")).hexdigest()[:12]
    return {"commit": commit.decode().strip(), "dirty": bool(status), "changes": changes if status else None}


def _git(folder: Path, *arguments: str) -> bytes | None:
    try:
        ran = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout if ran.returncode == 0 else None
