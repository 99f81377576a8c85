"""The unprofiled checks of one arm: bits over replays, peak memory, error to float64."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

import torch

from perfgate.determinism.bits import digest, first_difference
from perfgate.determinism.replay import clone_inputs, contention, poisoned_allocations
from perfgate.model import RunSpec
from perfgate.worker.job import Job, Outcome, Tensors, attempt
from perfgate.worker.timing import synchronise


def run(spec: RunSpec, jobs: list[Job], folder: Path) -> list[Outcome]:
    """One outcome per job; starts and ends are appended to ``results.jsonl`` at once, so that a crash has one culprit.

    An arm's first process takes the jobs as they come, its second from the last to the first: bits must not depend on what ran
    before, and each process finds half of the kernels compiled by the other.
    """
    outcomes = []
    with (folder / "results.jsonl").open("a") as lines:
        for job in reversed(jobs) if spec.position % 2 else jobs:
            _tell(lines, job.variant.name, {"status": "started", "text": "", "instances": 0})
            outcome = attempt(job, lambda job=job: _examine(job, spec))  # type: ignore[misc]
            outcomes.append(outcome)
            _tell(lines, outcome.variant, outcome.as_json())
    return outcomes


def _tell(lines: TextIO, variant: str, said: dict[str, Any]) -> None:
    lines.write(json.dumps({"variant": variant, **said}) + "\n")
    lines.flush()


def _examine(job: Job, spec: RunSpec) -> Outcome:
    began = time.perf_counter()
    x = job.make_inputs()
    memory = peak_memory(job, clone_inputs(x))
    reference = _outputs(job, clone_inputs(x))
    if not reference:
        raise TypeError(f"{job.variant.name} returned no tensor: there is nothing to compare")
    output_bytes = sum(one.untyped_storage().nbytes() for one in {one.data_ptr(): one for one in reference}.values())
    details: dict[str, Any] = {"digest": digest(reference), "replays": spec.replays, "output_bytes": output_bytes, **memory}
    differing, first = _replay(job, x, reference, spec.replays)
    details |= {"differing": differing, "first_difference": first}
    if spec.position == 0:
        details |= accuracy(job, x, reference)
    details["seconds"] = round(time.perf_counter() - began, 3)
    return Outcome(job.variant.name, "ok", instances=spec.replays, details=details)


def _outputs(job: Job, x: Any) -> Tensors:
    outputs = tuple(one.detach() for one in job.ready(x)())
    synchronise(job.device)
    return outputs


def _replay(job: Job, x: Any, reference: Tensors, replays: int) -> tuple[int, str]:
    """How many replays differ from ``reference`` and where the first one does.

    Every replay gets fresh clones and poisoned allocations; from the second on other streams contend for the machine.
    """
    differing, first = 0, ""
    for replay in range(replays):
        clone = clone_inputs(x)
        with poisoned_allocations(job.device):
            if replay == 0:
                outputs = _outputs(job, clone)
            else:
                with contention(job.device):
                    outputs = _outputs(job, clone)
        difference = first_difference(reference, outputs)
        if difference:
            differing += 1
            first = first or f"replay {replay + 1}: {difference}"
    return differing, first


def peak_memory(job: Job, x: Any) -> dict[str, int | None]:
    """Peak bytes that one call needs above what is allocated before it (its outputs included); ``None`` on a CPU."""
    if job.device == "cpu":
        return {"peak_bytes": None, "peak_reserved_bytes": None}
    call = job.ready(x)
    call()  # handles and workspaces that libraries keep for good are not this call's
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    call()
    torch.cuda.synchronize()
    return {
        "peak_bytes": torch.cuda.max_memory_allocated() - allocated,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() - reserved,
    }


def accuracy(job: Job, x: Any, outputs: Tensors) -> dict[str, Any]:
    """Relative L2 error ‖out − ref‖ / ‖ref‖ of the worst output against the op's float64 reference.

    ``error`` is ``None`` with the reason in ``error_note`` where the op has no reference or it does not fit into memory.
    """
    if job.op.compute_reference is None:
        return {"error": None, "error_note": "the op has no @op.reference"}
    try:
        exact = job.ready(_in_float64(clone_inputs(x)), job.op.compute_reference)()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"error": None, "error_note": "the float64 reference does not fit into the device's memory"}
    if [one.shape for one in exact] != [one.shape for one in outputs]:
        raise ValueError(
            f"the reference of {job.op.name} returns shapes {[tuple(one.shape) for one in exact]}, "
            f"{job.implementation.name} returns {[tuple(one.shape) for one in outputs]}"
        )
    return {"error": max(relative_l2(one, other) for one, other in zip(outputs, exact, strict=True)), "error_note": ""}


def relative_l2(output: torch.Tensor, exact: torch.Tensor) -> float:
    """‖output − exact‖ / ‖exact‖ in float64; the plain norm where ``exact`` is zero; inf where NaN or Inf don't match."""
    difference = output.detach().to(torch.float64) - exact.detach().to(torch.float64)
    special = ~torch.isfinite(exact)
    if special.any():
        same = (output.isnan() & exact.isnan()) | (output.to(torch.float64) == exact)
        if not bool(same[special].all()):
            return float("inf")
        difference = difference.masked_fill(special, 0.0)
        exact = exact.masked_fill(special, 0.0)
    size = float(exact.detach().to(torch.float64).norm())
    error = float(difference.norm())
    error = error / size if size > 0 else error
    return error if error == error else float("inf")


def _in_float64(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.to(torch.float64) if x.is_floating_point() else x
    if isinstance(x, dict):
        return {key: _in_float64(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(_in_float64(value) for value in x)
    return x
