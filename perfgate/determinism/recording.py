"""Runs subjects and takes their digests: ops of the registry, or a function of the user's own."""

from __future__ import annotations

import gc
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from perfgate.config import Config
from perfgate.determinism.bits import LEAF, leaf_digests
from perfgate.determinism.controls import Sensitivity, control_of
from perfgate.determinism.records import Entry, TensorRecord
from perfgate.determinism.replay import Replays, replay
from perfgate.discover import load
from perfgate.errors import UsageError
from perfgate.model import RunSpec, Variant
from perfgate.plan import make_plan
from perfgate.registry import Op, Registry
from perfgate.worker.job import Job


def record_ops(config: Config, device: str, *, contention: bool) -> Iterator[Entry]:
    """One entry per variant that ``config`` chooses in its mode, as it is made; what is unsupported or fails is one too.

    Raises :class:`UsageError` for a choice that selects nothing.
    """
    registry = load(config.workloads)
    children = make_plan(registry, config, device, "none").bits()
    if not children:
        raise UsageError(f"the chosen ops have no implementation of {config.mode} mode", "`perfgate list` shows them")
    spec, named = children[0], config.implementation
    for variant in spec.variants:
        if not named or variant.implementation in named:
            yield _entry(Job.of(registry, variant, spec), spec.replays, contention)


def _entry(job: Job, replays: int, contention: bool) -> Entry:
    problem = job.unsupported()
    if problem:
        return Entry(job.variant.name, status="unsupported", problem=problem)
    try:
        return entry_of(job.variant.name, _replayed(job, replays, contention))
    except Exception as error:
        return Entry(job.variant.name, status="failed", problem=f"{type(error).__name__}: {str(error).strip() or 'no message'}")
    finally:
        gc.collect()
        if job.device.startswith("cuda"):
            torch.cuda.empty_cache()


def _replayed(job: Job, replays: int, contention: bool) -> Replays:
    return replay(lambda x: job.ready(x)(), (job.make_inputs(),), replays=replays, contention=contention)


def entry_of(name: str, seen: Replays) -> Entry:
    """The digests of the reference run, with what the replays showed."""
    tensors = tuple(
        TensorRecord(
            path,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.element_size(),
            LEAF,
            tuple(leaf.hex() for leaf in leaf_digests(tensor)),
        )
        for path, tensor in seen.reference.items()
    )
    return Entry(name, tensors, seen.compared, seen.differing, seen.first_difference)


def record_function(target: str, *, replays: int, contention: bool) -> Entry:
    """The entry of a function without arguments, named ``path/to/file.py:function`` or ``module:function``."""
    return entry_of(target, replay(load_function(target), (), replays=replays, contention=contention))


def load_function(target: str) -> Callable[..., Any]:
    """Raises :class:`UsageError` where the file, module or function is not there or can't be imported."""
    place, _, name = target.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            if spec is None or spec.loader is None:
                raise ImportError(f"{place} is no Python file")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except Exception as error:
        raise UsageError(f"{place} can't be imported: {type(error).__name__}: {error}", "name it file.py:function") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{place} has no function {name!r}", "name it file.py:function")
    return function  # type: ignore[no-any-return]


def see_control(
    op: Op, device: str, *, replays: int, seed: int, contention: bool, paths: Sequence[str] = ()
) -> Sensitivity | None:
    """Replays ``op``'s racy control at its size, in every phase, under the mode of this process; ``None`` where it has none.

    The phase that differed most speaks. A control that can't run here leaves the sensitivity unproven, with the reason.
    """
    implementation, case = control_of(op)
    if not implementation:
        return None
    if device == "cpu":
        return Sensitivity(f"{implementation} at {case}: on a CPU nothing adds in arrival order", None, 0)
    role = next(one.role for one in op.implementations if one.name == implementation)
    best = Sensitivity(f"{implementation} at {case}", None, 0)
    for phase in op.phases:
        variant = Variant(op.name, case, phase, implementation, role)
        spec = RunSpec(
            "control", "bits", "default", (variant,), device, seed=seed, replays=replays, workload_paths=tuple(paths)
        )
        job = Job.of(Registry([op]), variant, spec)
        problem = job.unsupported()
        if problem:
            return Sensitivity(f"{best.control}: {problem}", None, 0)
        seen = _replayed(job, replays, contention)
        if best.differing is None or seen.differing > best.differing:
            best = Sensitivity(f"{implementation} at {case}:{phase}", seen.differing, seen.compared)
    return best
