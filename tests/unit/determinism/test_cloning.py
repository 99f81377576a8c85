from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from perfgate.determinism.cloning import clone_inputs

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Batch:
    rows: torch.Tensor
    name: str


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4).expand(3, 4),
        torch.randn(1).expand(5),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(6, 8)[::2, 1::3],
        torch.randn(6, 8).t(),
        torch.randn(10).unfold(0, 4, 2),
        torch.randn(9)[1:],
        torch.empty(0, 3),
        torch.empty(3, 0).t(),
        torch.tensor(1.0),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(4).to(torch.float8_e5m2),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)}{tensor.stride()}",
)
def test_layout_values_and_alignment_are_kept_in_new_storage(tensor):
    copied = clone_inputs(tensor)

    assert (tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj()) == (
        copied.shape,
        copied.stride(),
        copied.dtype,
        copied.is_conj(),
    )
    assert (
        torch.equal(torch.view_as_real(tensor.resolve_conj()), torch.view_as_real(copied.resolve_conj()))
        if (tensor.is_complex())
        else torch.equal(tensor.to(torch.float32), copied.to(torch.float32))
    )
    if tensor.numel():
        assert tensor.data_ptr() % 64 == copied.data_ptr() % 64
        assert tensor.untyped_storage().data_ptr() != copied.untyped_storage().data_ptr()


def test_an_overlapping_view_stays_overlapping():
    copied = clone_inputs(torch.zeros(3).expand(2, 3))
    copied[0, 1] = 5.0

    assert float(copied[1, 1]) == 5.0


def test_gradients_are_wanted_as_before_and_copies_are_leaves():
    source = torch.randn(3, requires_grad=True)
    copied = clone_inputs((source * 2, source.detach()))

    assert copied[0].is_leaf
    assert [tensor.requires_grad for tensor in copied] == [True, False]


def test_containers_are_rebuilt_and_other_objects_passed_on():
    marker = object()
    tensor = torch.zeros(2)
    inputs = [Pair(tensor, 1), OrderedDict(a=tensor), Batch(tensor, "x"), {"b": (tensor, None)}, marker]

    copied = clone_inputs(inputs)

    assert [Pair, OrderedDict, Batch, dict, object] == [type(item) for item in copied]
    assert copied[4] is marker
    assert copied[2].name == "x"
    copied[0].left.add_(1)
    assert float(tensor.sum()) == 0


def test_one_tensor_named_twice_stays_one():
    tensor = torch.zeros(2)
    first, second = clone_inputs((tensor, tensor))

    assert first is second


def test_a_generator_is_copied_with_its_state():
    generator = torch.Generator().manual_seed(7)
    copied = clone_inputs((generator,))[0]

    expected = torch.rand(3, generator=copied)
    assert torch.equal(expected, torch.rand(3, generator=generator))
