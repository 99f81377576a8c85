"""What this machine has for the gate, what is broken, and what mends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from perfgate.errors import ProfilerError
from perfgate.nvml import Segment, describe, read_segment
from perfgate.profilers.child_environment import for_tools
from perfgate.profilers.nsys_found import NsysFacts, find_nsys, probe
from perfgate.profilers.versions import numbers

TORCH_SECONDS = 120.0
LITTLE_DISK_BYTES = 2 << 30

# asked in a process of its own: the parent never imports torch
_ASK_TORCH = """
import json, torch
gpu = torch.cuda.is_available()
print(json.dumps({"cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name() if gpu else ""}))
"""


@dataclass(frozen=True)
class Check:
    """One line: ``error`` is what keeps `perfgate run --profiler nsys` from working here, ``warning`` what limits it."""

    name: str
    status: Literal["ok", "warning", "error"]
    text: str
    mend: str = ""


def examine() -> Iterator[Check]:
    """Every check in order, each as soon as it is known; later ones build on earlier ones."""
    card, problem = describe("cuda:0")
    yield gpu(card, problem)
    if card:
        yield card_state(read_segment("cuda:0"), card)
    yield python()
    torch = ask_torch()
    yield torch_check(torch, card)
    yield triton(bool(card))
    yield nvtx()
    found, nsys = find()
    yield nsys
    if found is not None:
        yield importer(found)
        yield capture(found, on_gpu=bool(card and torch.get("gpu")))
    yield contract()
    yield disk(Path.cwd())


def exit_code(checks: list[Check]) -> int:
    """6 where anything that `--profiler nsys` needs is broken, else 0: warnings are no failure."""
    return ProfilerError.exit_code if any(check.status == "error" for check in checks) else 0


def gpu(card: dict[str, Any], problem: str) -> Check:
    """The card as NVML describes it."""
    if not card:
        return Check("gpu", "warning", f"none: {problem}", "figures here are CPU figures; a GPU verdict needs an NVIDIA GPU")
    memory = f"{card['memory_bytes'] / 2**30:.0f} GiB" if card.get("memory_bytes") else "memory unknown"
    text = f"{card.get('name')}, {memory}, driver {card.get('driver')} (CUDA {card.get('cuda_driver')}), MIG {card.get('mig')}"
    if card.get("name") is None or card.get("driver") is None:
        return Check("gpu", "warning", f"NVML tells only part: {text}", "nvidia-smi -q; update nvidia-ml-py")
    return Check("gpu", "ok", text)


def card_state(now: Segment, card: dict[str, Any]) -> Check:
    """Clocks, power limit, throttling, other processes."""
    text = f"SM {now.sm_mhz} of {now.sm_max_mhz} MHz, {now.temperature_c} °C, limit {now.power_limit_w} W"
    if now.problem:
        return Check("clocks", "warning", now.problem, "throttling can't be noticed here; nvidia-smi -q -d CLOCK,PERFORMANCE")
    if now.others:
        return Check(
            "clocks", "warning", f"{text}; {now.others} other processes on the card", "nvidia-smi shows them: end them"
        )
    if now.throttled:
        mend = "wait until it is cool and idle; nvidia-smi -q -d PERFORMANCE"
        return Check("clocks", "warning", f"{text}; slowed down: {', '.join(now.throttled)}", mend)
    default = card.get("power_limit_default_w")
    if default and now.power_limit_w and now.power_limit_w < default:
        return Check("clocks", "warning", f"{text}, below the card's own {default} W", "its owner can raise it: nvidia-smi -pl")
    return Check("clocks", "ok", text)


def python() -> Check:
    """The interpreter that children run on too."""
    return Check("python", "ok", ".".join(str(part) for part in sys.version_info[:3]))


def ask_torch() -> dict[str, Any]:
    """``cuda`` and ``gpu`` as torch sees them, or ``error``."""
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH], capture_output=True, timeout=TORCH_SECONDS, env=for_tools(), check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"import torch did not end in {TORCH_SECONDS:g} s"}
    if ran.returncode != 0:
        said = ran.stderr.decode(errors="replace").strip().splitlines()
        return {"error": said[-1] if said else f"exit {ran.returncode}"}
    answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return answer


def torch_check(torch: dict[str, Any], card: dict[str, Any]) -> Check:
    """Whether torch starts, and sees the card that NVML sees."""
    if "error" in torch:
        return Check("torch", "error", f"does not start: {torch['error']}", "pip install torch")
    text = f"{version('torch')}, " + (f"CUDA {torch['cuda']}" if torch["cuda"] else "built for CPU only")
    if card and not torch["gpu"]:
        mend = (
            "pip install a torch built for CUDA"
            if not torch["cuda"]
            else "update the driver, or take a torch for an older CUDA"
        )
        return Check("torch", "error", f"{text}; it sees no GPU, NVML sees {card.get('name')}", mend)
    return Check("torch", "ok", f"{text}; GPU: {torch['gpu']}" if torch["gpu"] else text)


def triton(on_gpu: bool) -> Check:
    """Triton and the C compiler that it needs for its launchers."""
    try:
        text = version("triton")
    except PackageNotFoundError:
        return Check("triton", "warning", "not installed: Triton implementations are unsupported", "pip install triton")
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("clang") or shutil.which("cc")
    if on_gpu and not compiler:
        return Check("triton", "warning", f"{text}, but no C compiler: kernels can't be launched", "sudo apt-get install gcc")
    return Check("triton", "ok", text)


def nvtx() -> Check:
    """The package that opens our ranges; versions that older nsys can't read are known."""
    try:
        text = version("nvtx")
    except PackageNotFoundError:
        return Check("nvtx", "error", "not installed: no range can be recorded", "pip install 'nvtx<0.2.12'")
    if numbers(text) >= (0, 2, 12):
        return Check("nvtx", "warning", f"{text}: nsys 2024.2 and older lose all its ranges", "pip install 'nvtx<0.2.12'")
    return Check("nvtx", "ok", text)


def find() -> tuple[NsysFacts | None, Check]:
    """The nsys that a run would take."""
    try:
        facts = probe(find_nsys())
    except ProfilerError as error:
        return None, Check("nsys", "error", error.text, error.mend)
    return facts, Check("nsys", "ok", f"{facts.version} at {facts.path}")


def importer(facts: NsysFacts) -> Check:
    """Whether what nsys records can become a report."""
    if facts.importer is None:
        return Check("importer", "error", facts.importer_problem, facts.importer_mend)
    if facts.importer_problem:
        text = f"{facts.importer_problem}; perfgate imports with it, other users of this nsys get no report"
        return Check("importer", "warning", text, facts.importer_mend)
    return Check("importer", "ok", str(facts.importer))


def capture(facts: NsysFacts, *, on_gpu: bool) -> Check:
    """One probe capture, whose range must be in it."""
    from perfgate.profilers.probe_capture import probe_capture

    if facts.importer is None:
        return Check("probe capture", "error", "not tried: no importer", facts.importer_mend)
    with tempfile.TemporaryDirectory(prefix="perfgate-doctor-") as folder:
        problem = probe_capture(facts, Path(folder), on_gpu=on_gpu)
    what = "its ranges and their kernels" if on_gpu else "its ranges (no GPU: host times only)"
    if problem:
        text, _, mend = problem.partition("; ")
        return Check("probe capture", "error", text, mend)
    return Check("probe capture", "ok", f"recorded {what}")


def contract() -> Check:
    """Whether a launcher in this environment could run in deterministic mode; our own children get a clean one."""
    from perfgate.determinism.contract import state
    from perfgate.determinism.project import contract_of

    problems = [one.problem for one in state(os.environ, "deterministic", contract_of(Path.cwd())) if one.problem]
    if problems:
        return Check("contract", "warning", "; ".join(problems), "unset them for runs of your own programs")
    return Check("contract", "ok", "the environment allows deterministic mode")


def disk(folder: Path) -> Check:
    """Room for run directories and for nsys's scratch files."""
    for what, place in (("here", folder), ("for scratch files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(place).free
        if free < LITTLE_DISK_BYTES:
            return Check(
                "disk", "warning", f"{free / 2**30:.1f} GiB free {what}", "captures need more: free some, or use --out"
            )
    return Check("disk", "ok", f"{shutil.disk_usage(folder).free / 2**30:.0f} GiB free")
