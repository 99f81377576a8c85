"""Finding nsys, and what the one found can do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perfgate.errors import ProfilerError
from perfgate.profilers.child_environment import for_tools

PROBE_SECONDS = 60.0
INSTALL = "install it (Debian: sudo .ci/install-nsys), or name it: PERFGATE_NSYS=/path/to/nsys"
INSTALL_HOST = "install its host half (Debian: sudo .ci/install-nsys)"
DEBIAN = Path("/usr/lib/nsight-systems")


@dataclass(frozen=True)
class NsysFacts:
    """One nsys: where it is, its version ("2025.3.1"), the long flags of `nsys profile`, its importer.

    ``importer`` starts, or is ``None``: then nothing recorded can become a report. ``importer_problem`` is "" where nsys finds
    and starts it by itself; we can start one that lies elsewhere.
    """

    path: Path
    version: str
    flags: frozenset[str]
    importer: Path | None
    importer_problem: str = ""
    importer_mend: str = ""

    def offers(self, flag: str) -> bool:
        """True where `nsys profile --help` lists ``flag`` (``--trace``)."""
        return flag in self.flags


def find_nsys(environment: Mapping[str, str] = os.environ) -> Path:
    """The nsys to use: $PERFGATE_NSYS, PATH, the CUDA toolkit, Nsight Systems, the one inside Nsight Compute; newest first.

    Raises :class:`ProfilerError` where there is none, or where $PERFGATE_NSYS names no program.
    """
    if given := environment.get("PERFGATE_NSYS"):
        path = Path(given)
        if not _runnable(path):
            raise ProfilerError(f"PERFGATE_NSYS={given} is not a program", "correct it, or unset it to search")
        return path
    for candidate in candidates(environment):
        if _runnable(candidate):
            return candidate
    raise ProfilerError("no nsys found: not on PATH, in no CUDA toolkit, no Nsight Systems, no Nsight Compute", INSTALL)


def candidates(environment: Mapping[str, str], root: Path = Path("/")) -> Iterator[Path]:
    """Places where an nsys may lie, in order; ``root`` is for tests."""
    if found := shutil.which("nsys", path=environment.get("PATH", "")):
        yield Path(found)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(name):
            yield Path(environment[name]) / "bin/nsys"
    yield root / "usr/local/cuda/bin/nsys"
    yield from _newest_first(root, "usr/local/cuda-*/bin/nsys")
    yield from _newest_first(root, "opt/nvidia/nsight-systems/*/bin/nsys")
    yield from _newest_first(root, "opt/nvidia/nsight-systems/*/target-linux-*/nsys")
    yield from _newest_first(root, "opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys")


def _newest_first(root: Path, pattern: str) -> list[Path]:
    return sorted(root.glob(pattern), key=lambda path: [int(digits) for digits in re.findall(r"\d+", str(path))], reverse=True)


def _runnable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


@lru_cache(maxsize=8)
def probe(nsys: Path) -> NsysFacts:
    """What this nsys is and offers; asked once per process.

    Raises :class:`ProfilerError` where it does not run or lists no flags.
    """
    shown = _output([str(nsys), "--version"], nsys)
    found = re.search(r"\d{4}\.\d+(?:\.\d+)*", shown)
    if found is None:
        raise ProfilerError(f"{nsys} --version names no version: {shown.strip()[:200]!r}", INSTALL)
    flags = frozenset(re.findall(r"--[a-z][a-z-]*[a-z]", _output([str(nsys), "profile", "--help"], nsys)))
    if "--trace" not in flags:
        raise ProfilerError(f"{nsys} profile --help lists no --trace: this is no usable nsys", INSTALL)
    return NsysFacts(nsys, found[0], flags, *find_importer(nsys))


def _output(command: list[str], nsys: Path) -> str:
    try:
        ran = subprocess.run(
            command, capture_output=True, timeout=PROBE_SECONDS, env=for_tools(), stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise ProfilerError(f"{nsys} does not start: {error.strerror or error}", INSTALL) from None
    except subprocess.TimeoutExpired:
        raise ProfilerError(f"`{' '.join(command[1:])}` of {nsys} gave no answer in {PROBE_SECONDS:g} s", INSTALL) from None
    if ran.returncode != 0:
        said = (ran.stderr or ran.stdout).decode(errors="replace").strip().splitlines()
        raise ProfilerError(
            f"{nsys} {command[-1]} failed (exit {ran.returncode}): {said[-1] if said else 'no output'}", INSTALL
        )
    return ran.stdout.decode(errors="replace")


def find_importer(nsys: Path) -> tuple[Path | None, str, str]:
    """(a QdstrmImporter that starts or ``None``, what keeps nsys from using one by itself, what mends that).

    nsys looks for it in the folders beside its own real one (``target-linux-x64`` and ``host-linux-x64`` are neighbours).
    Debian puts the two halves apart; Nsight Compute's bundle lacks libdw.
    """
    home = nsys.resolve().parent
    for importer in sorted(home.parent.glob("*/QdstrmImporter")):
        problem, mend = unloadable(importer)
        return (None if problem else importer), problem, mend
    for base in (nsys.parent.parent, DEBIAN):
        for importer in sorted(base.glob("host-linux-*/QdstrmImporter")):
            problem, mend = unloadable(importer)
            if problem:
                return None, problem, mend
            link = f"ln -sfn {importer.parent} {home.parent / importer.parent.name}"
            return importer, f"nsys can't find its importer by itself: it lies in {importer.parent}, not beside {home}", link
    return None, f"no QdstrmImporter beside {home}: nsys can't make reports", INSTALL_HOST


def unloadable(importer: Path) -> tuple[str, str]:
    """Why ``importer`` does not start, with the mend, or two empty strings."""
    try:
        ran = subprocess.run([importer, "--version"], capture_output=True, timeout=PROBE_SECONDS, env=for_tools(), check=False)
        if ran.returncode == 0:
            return "", ""
        said = (ran.stderr or ran.stdout).decode(errors="replace").strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    libraries = missing_libraries(importer)
    if libraries:
        packages = " ".join(sorted({_PACKAGE_OF.get(name, name) for name in libraries}))
        return f"the importer lacks {', '.join(libraries)}", f"sudo apt-get install {packages} (or put it on the loader's path)"
    return f"the importer does not start: {said[:200]}", f"ldd {importer}"


_PACKAGE_OF = {"libdw.so.1": "libdw1", "libelf.so.1": "libelf1"}


def missing_libraries(program: Path) -> tuple[str, ...]:
    """Shared libraries that the loader does not find for ``program`` (``ldd``)."""
    try:
        ran = subprocess.run(["ldd", str(program)], capture_output=True, timeout=PROBE_SECONDS, env=for_tools(), check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    lines = ran.stdout.decode(errors="replace").splitlines()
    return tuple(line.split()[0] for line in lines if line.strip().endswith("=> not found"))
