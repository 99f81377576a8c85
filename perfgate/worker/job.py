"""One variant made ready to be called: its inputs, its implementation, and what the phase means."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from perfgate.model import RunSpec, Variant
from perfgate.registry import Case, Implementation, Op, Registry

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of one variant in this child; ``details`` are the purpose's own figures."""

    variant: str
    status: str  # ok | unsupported | failed
    text: str = ""
    instances: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"status": self.status, "text": self.text, "instances": self.instances, **self.details}


@dataclass(frozen=True)
class Job:
    """A variant with its op, case and implementation."""

    variant: Variant
    op: Op
    case: Case
    implementation: Implementation
    device: str
    seed: int

    @classmethod
    def of(cls, registry: Registry, variant: Variant, spec: RunSpec) -> Job:
        """The job for ``variant``. Raises :class:`~perfgate.errors.UsageError` where the registry lacks it."""
        op = registry.op(variant.op)
        implementation = next(one for one in op.implementations if one.name == variant.implementation)
        return cls(variant, op, op.case(variant.case), implementation, spec.device, spec.seed)

    def unsupported(self) -> str:
        """Why this implementation can't run here, or ""."""
        if self.implementation.backend == "triton" and self.device == "cpu":
            return "Triton kernels need a GPU; on a CPU only their interpreter tests run them"
        if self.implementation.supports is not None:
            return self.implementation.supports(self.case, self.device)
        return ""

    def generator(self, purpose: str) -> torch.Generator:
        """Seeded by the run's seed, op, case and ``purpose``: the same numbers in every arm and process."""
        text = f"{self.seed}:{self.op.name}:{self.case.name}:{purpose}"
        generator = torch.Generator(device=self.device)
        generator.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))
        return generator

    def make_inputs(self) -> Any:
        """What the op's ``inputs`` function makes."""
        if self.op.make_inputs is None:
            raise TypeError(f"op {self.op.name} has no @op.inputs")
        return self.op.make_inputs(self.case, self.device, self.generator("inputs"))

    def ready(self, x: Any, function: Callable[[Any], Any] | None = None) -> Callable[[], Tensors]:
        """A call without arguments that does exactly what the phase is, over inputs ``x``.

        fwd: the implementation under ``no_grad``. bwd: the forward runs now, once; the call is ``torch.autograd.grad`` of all
        its differentiable outputs with respect to the op's ``gradients``. step: forward and backward in the call.
        ``function`` stands in for the implementation (the float64 reference).
        """
        run = function or self.implementation.run
        if self.variant.phase == "fwd":

            def forward() -> Tensors:
                with torch.no_grad():
                    return flatten(run(x))

            return forward
        wanted = [x[key].requires_grad_() for key in self.op.gradients]
        if self.variant.phase == "step":
            return lambda: self._backward(flatten(run(x)), wanted, retain_graph=False)
        outputs = flatten(run(x))
        cotangents = self._cotangents(outputs)
        return lambda: torch.autograd.grad(cotangents[0], wanted, cotangents[1], retain_graph=True)

    def _backward(self, outputs: Tensors, wanted: list[torch.Tensor], retain_graph: bool) -> Tensors:
        differentiable, cotangents = self._cotangents(outputs)
        return torch.autograd.grad(differentiable, wanted, cotangents, retain_graph=retain_graph)

    def _cotangents(self, outputs: Tensors) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs that have a gradient, and random cotangents for them: the same values whatever their dtype."""
        differentiable = [one for one in outputs if one.requires_grad]
        if not differentiable:
            raise TypeError(f"{self.variant.name}: no output depends on {', '.join(self.op.gradients)} through autograd")
        generator = self.generator("cotangents")
        made = []
        for output in differentiable:
            # bf16 first: the float64 reference then receives exactly the values that a bf16 implementation does
            value = torch.randn(output.shape, device=output.device, dtype=torch.float32, generator=generator)
            made.append(value.to(torch.bfloat16).to(output.dtype))
        return differentiable, made


def flatten(outputs: Any) -> Tensors:
    """The tensors of a tensor, a tuple, a list or a dict (in key order); others are refused."""
    if isinstance(outputs, torch.Tensor):
        return (outputs,)
    if isinstance(outputs, dict):
        return tuple(tensor for key in sorted(outputs) for tensor in flatten(outputs[key]))
    if isinstance(outputs, (tuple, list)):
        return tuple(tensor for one in outputs for tensor in flatten(one))
    if outputs is None:
        return ()
    raise TypeError(f"an implementation returned {type(outputs).__name__}: tensors, tuples, lists or dicts of them are needed")


def attempt(job: Job, action: Callable[[], Outcome]) -> Outcome:
    """The action's outcome; an unsupported job or an exception become outcomes too, with the traceback in the log."""
    try:
        reason = job.unsupported()
        return Outcome(job.variant.name, "unsupported", reason) if reason else action()
    except Exception as error:
        traceback.print_exc()
        return Outcome(job.variant.name, "failed", f"{type(error).__name__}: {str(error).strip() or 'no message'}"[:2000])
