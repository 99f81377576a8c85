"""What the captures of a run hold for each variant: measured instances, bits, memory, problems. Reads the run directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfgate.compare import arm, sample
from perfgate.errors import PerfgateError
from perfgate.measure import Measurement, measure
from perfgate.model import ArmFigures, Capture, ProcessSample, Reason, Variant
from perfgate.store import RunDirectory
from perfgate.traces import read

OUT_OF_MEMORY = ("OutOfMemoryError", "torch.OutOfMemoryError")  # how the worker's words for torch's exception begin
LOST_SHARE = 0.01  # of the GPU time: more than this outside every range is a finding


@dataclass
class Evidence:
    """All that is known of one variant so far."""

    parts: list[tuple[Measurement, ProcessSample]] = field(default_factory=list)  # one per timing child
    bits: list[dict[str, Any]] = field(default_factory=list)  # one per bits child, in process order
    confirmations: list[ProcessSample] = field(default_factory=list)  # of the unprofiled timing children
    problems: list[Reason] = field(default_factory=list)
    _figures: tuple[tuple[str, ...], ArmFigures] | None = None

    def figures(self, variant: Variant) -> ArmFigures | None:
        """The arm's figures, ``None`` where nothing was timed; worked out anew only where a capture came or went."""
        if not self.parts:
            return None
        state = (*(one.capture for _, one in self.parts), "", *(one.capture for one in self.confirmations))
        if self._figures is None or self._figures[0] != state:
            found = arm(variant.implementation, self.parts, name=variant.name, confirmations=self.confirmations)
            self._figures = (state, found)
        return self._figures[1]

    def add_problem(self, problem: Reason) -> None:
        """Keeps one problem of each code: the first is the cause."""
        if all(known.code != problem.code for known in self.problems):
            self.problems.append(problem)


class Collection:
    """The evidence of a run, capture by capture; each trace is read and measured once."""

    def __init__(self, run: RunDirectory, variants: Iterable[Variant]) -> None:
        self.run = run
        self.of: dict[str, Evidence] = {variant.name: Evidence() for variant in variants}
        self.findings: list[Reason] = []

    def add(self, capture: Capture) -> None:
        """Takes in what ``capture`` left behind of its spec's variants; whatever is wrong becomes a problem of theirs."""
        asked = {variant.name for variant in capture.spec.variants}
        told = {name: outcome for name, outcome in self.run.done(capture).items() if name in self.of and name in asked}
        if capture.note:
            self.findings.append(Reason("PROFILER_RESTARTED", capture.note, "perfgate doctor"))
        if capture.error:
            self._failed(capture, told)
        else:
            self._untold(capture, told)
        for name, outcome in told.items():
            if outcome["status"] == "started":  # the culprit of a child that died: see _failed
                continue
            if outcome["status"] == "unsupported":
                self.of[name].add_problem(Reason("UNSUPPORTED", outcome["text"]))
                if self.of[name].bits or self.of[name].parts:
                    text = f"{capture.spec.id} calls it unsupported ({outcome['text']}), an earlier child ran it"
                    self.of[name].add_problem(Reason("WORKLOAD_FAILED", text, "supports= must say the same in every process"))
            elif outcome["status"] == "failed":
                log = f"{capture.folder}/worker.log"
                self.of[name].add_problem(Reason("WORKLOAD_FAILED", outcome["text"], f"see {log}"))
            elif capture.spec.purpose == "bits":
                self.of[name].bits.append({"process": capture.spec.position, **outcome})
                if outcome.get("error_note"):
                    text = f"{name}: no error to float64: {outcome['error_note']}"
                    self.findings.append(
                        Reason("ACCURACY_NOT_MEASURED", text, "its result was held against nothing but itself")
                    )
            elif capture.spec.purpose == "confirm":
                times = tuple(outcome["step_wall_ns"])
                one = ProcessSample(capture.spec.id, capture.spec.block, capture.spec.position, (), (), (), (), "", times)
                self.of[name].confirmations.append(one)
        if capture.spec.purpose == "time" and not capture.error:
            self._measure(capture, [name for name, outcome in told.items() if outcome["status"] == "ok"])

    def starved(self, capture: Capture) -> tuple[Variant, ...]:
        """The variants for which there was no memory left on the card: beside other children that need not be their fault."""
        told = self.run.done(capture)
        return tuple(one for one in capture.spec.variants if told.get(one.name, {}).get("text", "").startswith(OUT_OF_MEMORY))

    def not_reached(self, capture: Capture) -> tuple[Variant, ...]:
        """The variants that a child which died had not started: all behind its culprit, none where it died before the first."""
        told = self.run.done(capture)
        return tuple(one for one in capture.spec.variants if one.name not in told) if told else ()

    def drop_block(self, number: int, why: Sequence[str]) -> None:
        """Forgets the instances of one block, whose arms met unlike conditions; told as BLOCK_DROPPED."""
        for evidence in self.of.values():
            evidence.parts = [(measured, one) for measured, one in evidence.parts if one.block != number]
            evidence.confirmations = [one for one in evidence.confirmations if one.block != number]
        self.findings.extend(Reason("BLOCK_DROPPED", text, "run when the card is yours alone") for text in why)

    def _failed(self, capture: Capture, told: dict[str, Any]) -> None:
        """A child or profiler that failed: an error of its culprit, or of all its variants where there is no one culprit."""
        code = "PROFILER_FAILED" if capture.blame == "profiler" else "WORKLOAD_FAILED"
        culprits = {name for name, outcome in told.items() if outcome["status"] == "started"}
        for variant in capture.spec.variants:
            if capture.spec.purpose == "time" or not culprits or variant.name in culprits:
                self.of[variant.name].add_problem(Reason(code, capture.error, f"see {capture.folder}/worker.log"))

    def _untold(self, capture: Capture, told: dict[str, Any]) -> None:
        """A child that came to its end owes a word on each of its variants."""
        for variant in capture.spec.variants:
            if variant.name not in told:
                text = f"{capture.spec.id} ended without a word on {variant.name}"
                self.of[variant.name].add_problem(Reason("VANISHED", text, f"see {capture.folder}/done.json and worker.log"))

    def _measure(self, capture: Capture, names: list[str]) -> None:
        spec = capture.spec
        try:
            measurement = measure(read(self.run.path / capture.folder / capture.trace), detail=True)
        except PerfgateError as error:
            for name in names:
                self.of[name].add_problem(Reason("PROFILER_FAILED", f"{spec.id}: {error.text}", error.mend))
            return
        seen = set(measurement.instances.loc[measurement.instances["domain"] == "perfgate", "name"])
        for name in names:
            if name not in seen:
                text = f"{spec.id} ran it, but its range is not in the trace"
                self.of[name].add_problem(Reason("VANISHED", text, "perfgate doctor checks nvtx against nsys"))
                continue
            one = sample(measurement, name, capture=spec.id, block=spec.block, position=spec.position)
            self.of[name].parts.append((measurement, one))
            if spec.device != "cpu" and not one.busy_ns:
                text = f"{spec.id}: the GPU time of {name} is unknown in some instances"
                self.of[name].add_problem(Reason("PROFILER_FAILED", text, f"perfgate ranges {capture.folder}/{capture.trace}"))
        for left in measurement.unattributed:
            if left.share > LOST_SHARE:
                text = f"{spec.id}: {left.share:.1%} of the GPU time lies in no range ({left.ops} operations): {left.reason}"
                self.findings.append(Reason("UNATTRIBUTED_GPU_TIME", text, f"perfgate ranges {capture.folder}/{capture.trace}"))
