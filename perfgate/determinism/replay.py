"""Does a function give the same bits every time? The public face of the replay harness.

::

    assert_replays_bit_exact(combine, (rows, index), replays=8, contention=True)
    assert_module_replays_bit_exact(layer, (hidden,))
    assert count_differing_replays(racy_combine, (rows, index), replays=8) > 0   # the control: this harness can see a race

The first run is the reference, so ``replays=8`` compares seven runs with it. Every run gets fresh copies of its inputs with
their layout kept, and (unless ``restore_rng=False``) the same random state. Comparison is on the device, bit for bit.

Below three contributions per output a race can't show, since addition commutes: size a control with many blocks that add
into the same outputs; that finds more than a larger ``replays``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from perfgate.determinism.bits import bytes_equal, digest, first_difference, flatten, named_difference
from perfgate.determinism.cloning import clone_inputs, clone_tensor
from perfgate.determinism.contention import Contention, ContentionWarning, contention, why_none
from perfgate.determinism.module_state import kept_state
from perfgate.determinism.poison import PATTERNS, poisoned_allocations
from perfgate.determinism.rng import restore_rng, rng_state, seeded
from perfgate.determinism.torch_flags import deterministic_algorithms
from perfgate.errors import UsageError

__all__ = [
    "Contention",
    "ContentionWarning",
    "Replays",
    "assert_module_replays_bit_exact",
    "assert_replays_bit_exact",
    "bytes_equal",
    "clone_inputs",
    "contention",
    "count_differing_replays",
    "deterministic_algorithms",
    "digest",
    "first_difference",
    "flatten",
    "poisoned_allocations",
    "replay",
    "replay_any",
    "replay_module",
    "restore_rng",
    "rng_state",
    "seeded",
]

_side_streams, _restored_rng = contention, restore_rng  # the functions below have arguments of these names


@dataclass(frozen=True)
class Replays:
    """What a series of runs showed. ``notes`` say what was asked for and could not be done (no contention on a CPU)."""

    compared: int  # runs compared with the first one
    differing: int
    first_difference: str  # of the first run that differed; "" if none did
    tensors: int  # compared in each run
    side_launches: int = 0  # GEMMs and copies that ran on side streams meanwhile
    notes: tuple[str, ...] = ()
    reference: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)  # the first run's, by name

    def __str__(self) -> str:
        told = f"{self.differing} of {self.compared} replays differ from the first run"
        return f"{told}\n  {self.first_difference}" if self.first_difference else told


def assert_replays_bit_exact(fn: Callable[..., Any], inputs: Any = (), *, what: str = "", **options: Any) -> Replays:
    """Raises ``AssertionError`` when a replay of ``fn`` differs from its first run in any bit.

    The message tells the path, index, values, bit patterns, differing/total, the largest difference and how many differ only
    in bits. ``what`` names the subject in it. Options and errors: :func:`replay`.
    """
    __tracebackhide__ = True
    return _asserted(replay(fn, inputs, **options), what or told(fn))


def assert_module_replays_bit_exact(module: torch.nn.Module, inputs: Any = (), *, what: str = "", **options: Any) -> Replays:
    """:func:`assert_replays_bit_exact` for a module: outputs, buffers, gradients of inputs and of parameters."""
    __tracebackhide__ = True
    return _asserted(replay_module(module, inputs, **options), what or told(module))


def count_differing_replays(fn: Callable[..., Any], inputs: Any = (), **options: Any) -> int:
    """How many of the ``replays - 1`` later runs differ from the first: the negative control wants more than 0."""
    return replay(fn, inputs, **options).differing


def replay(
    fn: Callable[..., Any],
    inputs: Any = (),
    *,
    replays: int = 3,
    backward: bool = False,
    grad_outputs: Any = None,
    contention: bool = False,
    poison: bool = False,
    restore_rng: bool = True,
) -> Replays:
    """Runs ``fn`` ``replays`` times (at least 2, the first is the reference) and compares every output bit for bit.

    ``inputs``: a tuple or list of positional arguments, a mapping of keyword arguments, or one tensor. ``backward`` adds the
    gradients of every input that requires one, for ``grad_outputs`` (the same structure as the outputs that require a
    gradient; seeded normal values where ``None``). ``contention`` keeps side streams busy from the second run on; ``poison``
    fills uninitialised memory with another pattern in each run; ``restore_rng`` rewinds every random state before each run.
    Raises :class:`UsageError` when nothing would be compared: fewer than two runs, no outputs, no gradients.
    """

    def run() -> dict[str, torch.Tensor]:
        arguments = clone_inputs(inputs)
        found = _outputs(_call(fn, arguments))
        if backward:
            _backward(found, grad_outputs)
            found |= _gradients(flatten(arguments, strict=False), "gradient of input")
        return found

    if backward and not any(tensor.requires_grad for tensor in flatten(inputs, strict=False).values()):
        raise UsageError("backward=True, but no input requires a gradient", "call requires_grad_() on the inputs of interest")
    return _series(run, inputs, replays, contention, poison, restore_rng)


def replay_module(
    module: torch.nn.Module,
    inputs: Any = (),
    *,
    replays: int = 3,
    backward: bool = True,
    grad_outputs: Any = None,
    contention: bool = False,
    poison: bool = False,
    restore_rng: bool = True,
) -> Replays:
    """:func:`replay` for a module: its buffers and, with ``backward``, its parameters' gradients are compared too.

    Parameters, buffers and ``.grad`` are put back before each run and after the last.
    """
    with kept_state(module) as rewind:

        def run() -> dict[str, torch.Tensor]:
            rewind()
            arguments = clone_inputs(inputs)
            found = _outputs(_call(module, arguments))
            if backward:
                _backward(found, grad_outputs)
                found |= _gradients(flatten(arguments, strict=False), "gradient of input")
                found |= _gradients(dict(module.named_parameters()), "gradient of parameter ")
            return found | {f"buffer {name}": buffer for name, buffer in module.named_buffers()}

        return _series(run, inputs, replays, contention, poison, restore_rng)


def replay_any(subject: Callable[..., Any], inputs: Any = (), **options: Any) -> Replays:
    """:func:`replay_module` for a module, :func:`replay` for any other callable."""
    if isinstance(subject, torch.nn.Module):
        return replay_module(subject, inputs, **options)
    return replay(subject, inputs, **options)


def told(subject: Callable[..., Any]) -> str:
    """The subject's name in a message."""
    return type(subject).__name__ if isinstance(subject, torch.nn.Module) else getattr(subject, "__name__", "the function")


def _series(
    run: Callable[[], dict[str, torch.Tensor]], inputs: Any, replays: int, contend: bool, poison: bool, rewind: bool
) -> Replays:
    if replays < 2:
        raise UsageError(f"replays={replays} compares nothing: the first run is the reference", "ask for at least 2")
    with ExitStack() as stack:
        state = stack.enter_context(_restored_rng()) if rewind else None
        reference: dict[str, torch.Tensor] = {}
        beside = Contention()
        differing, first = 0, ""
        for number in range(replays):
            if state is not None:
                state.restore()
            if contend and number == 1:
                beside = _contend(stack, _device(inputs, reference))
            with ExitStack() as around:
                if poison:
                    around.enter_context(poisoned_allocations(_device(inputs, reference), PATTERNS[number % len(PATTERNS)]))
                found = run()
            if number == 0:
                reference = {path: clone_tensor(tensor.detach()) for path, tensor in found.items()}
            elif not _same(reference, found):
                differing += 1
                first = first or f"run {number + 1}: {named_difference(reference, found)}"
    notes = (beside.note,) if beside.note else ()
    return Replays(replays - 1, differing, first, len(reference), beside.launches, notes, reference)


def _contend(stack: ExitStack, device: torch.device) -> Contention:
    note = why_none(device)
    if note:
        warnings.warn(note, ContentionWarning, stacklevel=5)
        return Contention(note)
    return stack.enter_context(_side_streams(device))


def _same(reference: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> bool:
    return reference.keys() == found.keys() and all(bytes_equal(reference[path], found[path]) for path in reference)


def _call(fn: Callable[..., Any], arguments: Any) -> Any:
    if isinstance(arguments, Mapping):
        return fn(**arguments)
    return fn(*arguments) if isinstance(arguments, list | tuple) else fn(arguments)


def _outputs(returned: Any) -> dict[str, torch.Tensor]:
    found = {f"output{path}": tensor for path, tensor in flatten(returned).items()}
    if not found:
        raise UsageError(
            "the function returned no outputs: nothing to compare", "return what it computes, in-place results too"
        )
    return found


def _backward(found: Mapping[str, torch.Tensor], grad_outputs: Any) -> None:
    roots = [tensor for tensor in found.values() if tensor.requires_grad]
    if not roots:
        raise UsageError("backward=True, but no output requires a gradient", "leave backward out, or don't detach")
    if grad_outputs is None:
        gradients = [_seeded_gradient(root) for root in roots]
    else:
        gradients = list(flatten(clone_inputs(grad_outputs)).values())
    if len(gradients) != len(roots):
        raise UsageError(f"{len(gradients)} grad_outputs for {len(roots)} outputs that require a gradient")
    torch.autograd.backward(roots, gradients)


def _seeded_gradient(root: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(root.device).manual_seed(0)
    wide = torch.complex64 if root.dtype.is_complex else torch.float32
    return torch.randn(root.shape, generator=generator, device=root.device, dtype=wide).to(root.dtype)


def _gradients(tensors: Mapping[str, torch.Tensor], what: str) -> dict[str, torch.Tensor]:
    return {f"{what}{path}": tensor.grad for path, tensor in tensors.items() if tensor.grad is not None}


def _device(inputs: Any, reference: Mapping[str, torch.Tensor]) -> torch.device:
    tensors = (*flatten(inputs, strict=False).values(), *reference.values())
    devices = [tensor.device for tensor in tensors]
    return next((device for device in devices if device.type == "cuda"), devices[0] if devices else torch.device("cpu"))


def _asserted(result: Replays, what: str) -> Replays:
    __tracebackhide__ = True
    if result.differing:
        raise AssertionError(f"{what}: {result}")
    return result
