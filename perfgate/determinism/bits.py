"""Bits of tensors: flattened, digested, compared, and the first difference told in words.

Equal means: the same shape, dtype and bit pattern. −0.0 is not 0.0, NaN payloads count; strides and devices don't.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from perfgate.errors import UsageError

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_CHUNK = 1 << 24  # elements compared at a time, so that temporaries stay small
_PIECE = 128 << 20  # bytes copied to the host at a time
LEAF = 1 << 20  # bytes of one leaf of the digest


def flatten(outputs: Any, *, strict: bool = True) -> dict[str, torch.Tensor]:
    """Every tensor of nested outputs by its path: ``{"": tensor}``, ``{"[0]": ..., "[1].grad": ...}``.

    Understands tensors (sparse ones as their parts), tuples, lists, mappings, dataclasses and numbers. ``None`` has no entry,
    so a value that is ``None`` in one run and a tensor in another shows as missing. Raises :class:`UsageError` naming the
    path and type of anything else, which ``strict=False`` leaves out instead.
    """
    return dict(_leaves(outputs, "", strict))


def _leaves(value: Any, path: str, strict: bool) -> Iterator[tuple[str, torch.Tensor]]:
    if value is None:
        return
    if isinstance(value, torch.Tensor):
        yield from _tensor_parts(value, path)
    elif isinstance(value, bool | int | float | complex):
        yield path, _number(value, path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]", strict)
    elif isinstance(value, list | tuple):
        names = getattr(value, "_fields", None)
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{names[index]}" if names else f"{path}[{index}]", strict)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _leaves(getattr(value, each.name), f"{path}.{each.name}", strict)
    elif type(value).__module__ == "numpy":
        yield path, torch.as_tensor(value)
    elif strict:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise UsageError(
            f"output{path} is a {kind}, whose bits can't be compared",
            "return tensors, numbers, None, or tuples, lists, dicts and dataclasses of them",
        )


def _tensor_parts(tensor: torch.Tensor, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if tensor.layout == torch.strided:
        yield path, tensor
    elif tensor.layout == torch.sparse_coo:
        yield f"{path}.indices", tensor._indices()
        yield f"{path}.values", tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield f"{path}.crow_indices", tensor.crow_indices()
        yield f"{path}.col_indices", tensor.col_indices()
        yield f"{path}.values", tensor.values()
    else:
        raise UsageError(f"output{path} has layout {tensor.layout}, whose bits can't be compared", "return its parts")


def _number(value: complex, path: str) -> torch.Tensor:
    if isinstance(value, bool):
        return torch.tensor(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise UsageError(f"output{path} is an int of more than 64 bits", "return a string of digits in a tensor, or less")
        return torch.tensor(value, dtype=torch.int64)
    return torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The bit pattern as a 1-D integer tensor in logical order, on the tensor's device; a view where it is contiguous.

    One word per element (two for complex128), of the element's size.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(_WORDS[plain.element_size()])


def bytes_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Same shape, dtype and bit pattern, compared on ``first``'s device; strides are ignored."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(words(first), words(second.to(first.device)))


def digest(outputs: Any) -> str:
    """A SHA-256 in hex over path, shape, dtype and bit pattern of every tensor in ``outputs`` (see :func:`flatten`).

    The same in every process and on every device; strides and the order of dict keys don't count. The bytes travel to the
    host in pieces of at most 128 MiB and are hashed there by several threads, so that it is evidence which any SHA-256 can
    check. To compare runs within one process use :func:`bytes_equal`, which stays on the device.
    """
    total = hashlib.sha256()
    for path, tensor in sorted(flatten(outputs).items()):
        header = f"{path}\0{tensor.dtype}\0{'x'.join(map(str, tensor.shape))}\0".encode()
        total.update(struct.pack("<Q", len(header)))
        total.update(header)
        total.update(hashlib.sha256(b"".join(leaf_digests(tensor))).digest())
    return total.hexdigest()


def leaf_digests(tensor: torch.Tensor) -> list[bytes]:
    """The SHA-256 of each MiB of the bit pattern (little-endian, elements in logical order); none for an empty tensor."""
    leaves: list[bytes] = []
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for piece in words(tensor).split(_PIECE // tensor.element_size()):
            content = memoryview(piece.cpu().numpy()).cast("B") if piece.numel() else memoryview(b"")
            leaves += pool.map(_sha256, (content[at : at + LEAF] for at in range(0, len(content), LEAF)))
    return leaves


def _sha256(content: memoryview) -> bytes:
    return hashlib.sha256(content).digest()


def first_difference(reference: Any, other: Any) -> str:
    """The first tensor of nested outputs that differs, in words; "" if all bits are equal.

    Tells index, both values and bit patterns, differing/total, the largest absolute difference, and how many differ only in
    bits (−0.0 against 0.0, NaN payloads).
    """
    named = [{f"output{path}": tensor for path, tensor in flatten(run).items()} for run in (reference, other)]
    return named_difference(*named)


def named_difference(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> str:
    """:func:`first_difference` for tensors that already have names."""
    for name, tensor in first.items():
        if name not in second:
            return f"{name}: missing in the second run"
        told = _difference(tensor, second[name])
        if told:
            return f"{name}: {told}"
    return next((f"{name}: missing in the first run" for name in second if name not in first), "")


def _difference(reference: torch.Tensor, other: torch.Tensor) -> str:
    if reference.shape != other.shape:
        return f"shape {tuple(reference.shape)} against {tuple(other.shape)}"
    if reference.dtype != other.dtype:
        return f"dtype {reference.dtype} against {other.dtype}"
    other = other.to(reference.device)
    differs = words(reference) != words(other)
    if reference.element_size() == 16:
        differs = differs.view(-1, 2).any(dim=1)
    count = int(differs.sum())
    if count == 0:
        return ""
    position = int(differs.view(torch.uint8).argmax())
    left, right = _readable(reference), _readable(other)
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), reference.shape)) if reference.dim() else ()
    place = f"the first at [{', '.join(map(str, index))}]" if index else "a scalar"
    return (
        f"{count}/{differs.numel()} differ, {place}: {_shown(left[position])} against {_shown(right[position])}"
        f"{_size_of_difference(left, right, differs)}"
    )


def _size_of_difference(left: torch.Tensor, right: torch.Tensor, differs: torch.Tensor) -> str:
    largest, bits_only, lone_nans = 0.0, 0, 0
    for a, b, mask in zip(left.split(_CHUNK), right.split(_CHUNK), differs.split(_CHUNK), strict=True):
        x, y = _wide(a[mask]), _wide(b[mask])
        if a.dtype.is_floating_point or a.dtype.is_complex:  # other types differ in value wherever they differ in bits
            bits_only += int(((x == y) | (x.isnan() & y.isnan())).sum())
            lone_nans += int((x.isnan() ^ y.isnan()).sum())
        delta = (x - y).abs()
        delta = delta[~delta.isnan()]
        largest = max(largest, float(delta.max())) if delta.numel() else largest
    return (
        f"; max |delta| {largest:.6g}"
        + (f"; {bits_only} differ only in bits" if bits_only else "")
        + (f"; {lone_nans} are NaN in one run only" if lone_nans else "")
    )


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in logical order, as values where torch can index them, else (two fp4 values in a byte) as words."""
    packed = "_x2" in str(tensor.dtype)
    return words(tensor) if packed else tensor.detach().contiguous().reshape(-1)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    if tensor.element_size() == 1 and tensor.dtype.is_floating_point:
        tensor = tensor.to(torch.float32)  # fp8 converts to float32 only
    return tensor.to(torch.float64)


def _shown(element: torch.Tensor) -> str:
    value = element.to(torch.float32).item() if str(element.dtype).startswith("torch.float8") else element.item()
    raw = words(element).cpu().numpy().tobytes()
    step = element.element_size() // 2 if element.dtype.is_complex else element.element_size()
    pattern = " ".join(f"0x{raw[at : at + step][::-1].hex()}" for at in range(0, len(raw), step))
    return f"{value!r} ({pattern})"
