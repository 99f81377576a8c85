import hashlib
import math
import struct
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from perfgate.determinism.bits import LEAF, bytes_equal, digest, first_difference, flatten, leaf_digests
from perfgate.errors import UsageError

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.complex64,
    torch.complex128,
]


def _values(dtype):
    return torch.arange(24).reshape(2, 3, 4).to(torch.float32).to(dtype)


def _flip(tensor, element, bit=0):
    flipped = tensor.clone()
    size = tensor.element_size()
    flipped.view(-1).view(torch.uint8)[element * size + bit // 8] ^= 1 << (bit % 8)
    return flipped


@dataclass
class Output:
    value: torch.Tensor
    aux: dict[str, float]


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_flipped_bit_is_seen_whatever_the_dtype(dtype):
    tensor = _values(dtype)
    other = _flip(tensor, 17)

    assert bytes_equal(tensor, tensor.clone())
    assert not bytes_equal(tensor, other)
    assert digest(tensor) != digest(other)
    assert "1/24 differ, the first at [1, 1, 1]" in first_difference(tensor, other)
    assert first_difference(tensor, tensor.clone()) == ""


def test_negative_zero_is_not_zero():
    zero, negative = torch.zeros(3), torch.tensor([0.0, -0.0, 0.0])

    assert torch.equal(zero, negative)
    assert not bytes_equal(zero, negative)
    assert digest(zero) != digest(negative)
    told = first_difference(zero, negative)
    assert "0.0 (0x00000000) against -0.0 (0x80000000)" in told
    assert "max |delta| 0; 1 differ only in bits" in told


def test_nan_payloads_count_and_the_same_nan_is_equal():
    quiet = torch.tensor([0x7FC00000, 0], dtype=torch.int32).view(torch.float32)
    payload = torch.tensor([0x7FC00001, 0], dtype=torch.int32).view(torch.float32)

    assert bytes_equal(quiet, quiet.clone())
    assert not bytes_equal(quiet, payload)
    assert "nan (0x7fc00000) against nan (0x7fc00001)" in first_difference(quiet, payload)
    assert "1 differ only in bits" in first_difference(quiet, payload)


def test_a_nan_in_one_run_only_is_told_beside_the_largest_difference():
    told = first_difference(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, math.nan, 3.5]))

    assert "2/3 differ, the first at [1]" in told
    assert "max |delta| 0.5; 1 are NaN in one run only" in told


def test_large_integers_that_round_to_one_float_are_not_only_in_bits():
    told = first_difference(torch.tensor([2**53]), torch.tensor([2**53 + 1]))

    assert "differ only in bits" not in told
    assert "9007199254740992 (0x0020000000000000) against 9007199254740993" in told


@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t.transpose(0, 2).contiguous().transpose(0, 2),
        lambda t: torch.stack([t, t], dim=-1)[..., 0],
        lambda t: torch.cat([torch.zeros(1), t.reshape(-1)])[1:].view(2, 3, 4),
    ],
    ids=["permuted", "strided", "offset"],
)
def test_layout_does_not_count(layout):
    tensor = _values(torch.float32)
    other = layout(tensor)

    assert bytes_equal(tensor, other)
    assert digest(tensor) == digest(other)


def test_expanded_and_conjugated_views_compare_by_value_in_logical_order():
    row = torch.arange(4.0)
    complex_values = torch.randn(4, dtype=torch.complex64)

    assert bytes_equal(row.expand(3, 4), row.repeat(3, 1))
    assert bytes_equal(complex_values.conj(), complex_values.conj().resolve_conj())
    assert digest(complex_values.conj()) != digest(complex_values)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2), "shape (2, 3) against (3, 2)"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32), "dtype torch.float32 against torch.int32"),
        ({"a": torch.zeros(1)}, {}, "output['a']: missing in the second run"),
        ((None, torch.zeros(1)), (torch.zeros(1), torch.zeros(1)), "output[0]: missing in the first run"),
        (torch.tensor(1.0), torch.tensor(1.5), "1/1 differ, a scalar: 1.0 (0x3f800000) against 1.5"),
    ],
)
def test_what_differs_is_named(first, second, told):
    assert told in first_difference(first, second)
    assert digest(first) != digest(second)


def test_empty_tensors_compare_by_shape():
    assert bytes_equal(torch.empty(0, 3), torch.empty(0, 3))
    assert not bytes_equal(torch.empty(0, 3), torch.empty(3, 0))
    assert digest(torch.empty(0, 3)) != digest(torch.empty(3, 0))


def test_nested_outputs_are_flattened_with_their_paths():
    x = torch.zeros(1)
    outputs = (x, [None, {"k": x}], Output(x, {"n": 1.5}), Pair(x, True), np.zeros(2), x.to_sparse())

    expected = [
        "[0]",
        "[1][1]['k']",
        "[2].value",
        "[2].aux['n']",
        "[3].left",
        "[3].right",
        "[4]",
        "[5].indices",
        "[5].values",
    ]
    assert expected == list(flatten(outputs))


def test_what_has_no_bits_is_refused_with_its_path():
    with pytest.raises(UsageError, match=r"output\[0\]\['a'\] is a builtins\.object"):
        flatten([{"a": object()}])
    with pytest.raises(UsageError, match="more than 64 bits"):
        flatten(2**64)


def test_objects_without_bits_are_left_out_when_asked():
    assert list(flatten([object(), torch.zeros(1)], strict=False)) == ["[1]"]


def test_the_digest_is_a_sha256_that_anyone_can_check():
    header = b"\0torch.float32\x002\0"
    leaf = hashlib.sha256(struct.pack("<2f", 1.0, -0.0)).digest()
    body = hashlib.sha256(leaf).digest()

    expected = hashlib.sha256(struct.pack("<Q", len(header)) + header + body).hexdigest()
    assert expected == digest(torch.tensor([1.0, -0.0]))


def test_the_digest_is_the_same_in_another_process_and_another_dict_order():
    code = "import torch; from perfgate.determinism.bits import digest; print(digest({'b': 1.0, 'a': torch.arange(5)}))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    assert told == digest({"a": torch.arange(5), "b": 1.0})


def test_large_tensors_are_hashed_in_leaves_whatever_the_layout():
    tensor = torch.arange(2 * LEAF // 8 + 3)
    content = tensor.numpy().tobytes()

    expected = [hashlib.sha256(content[at : at + LEAF]).digest() for at in range(0, len(content), LEAF)]
    assert expected == leaf_digests(tensor)
    assert expected == leaf_digests(torch.stack([tensor, tensor], dim=1)[:, 0])
    assert leaf_digests(torch.empty(0)) == []
