import random
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from perfgate.determinism.replay import (
    ContentionWarning,
    assert_module_replays_bit_exact,
    assert_replays_bit_exact,
    count_differing_replays,
    replay,
    replay_module,
)
from perfgate.errors import UsageError


class Racy:
    """Adds one last bit to one element in every call of ``differs`` (counted from 1)."""

    def __init__(self, *differs, at=1):
        self.calls, self.differs, self.at = 0, differs, at

    def __call__(self, x):
        self.calls += 1
        y = x * 2
        if self.calls in self.differs:
            flat = y.detach().view(-1)
            flat.view(torch.int32)[self.at] ^= 1
        return y


def test_equal_runs_pass_and_say_what_was_compared():
    result = assert_replays_bit_exact(lambda x: (x * 2, {"sum": x.sum()}), (torch.randn(5),), replays=4)

    assert (result.compared, result.differing, result.first_difference, result.tensors) == (3, 0, "", 2)


def test_the_message_tells_run_place_bits_and_size():
    with pytest.raises(AssertionError) as raised:
        assert_replays_bit_exact(Racy(3), (torch.ones(2, 3),), replays=4, what="combine")

    text = str(raised.value)
    assert text.startswith("combine: 1 of 3 replays differ from the first run")
    assert "run 3: output: 1/6 differ, the first at [0, 1]: 2.0 (0x40000000) against 2.000000238418579 (0x40000001)" in text


@pytest.mark.parametrize("differs", [(), (2,), (2, 3, 4), (1,)])
def test_differing_replays_are_counted_against_the_first(differs):
    expected = 3 if differs == (1,) else len(differs)
    assert expected == count_differing_replays(Racy(*differs), torch.ones(4), replays=4)


@pytest.mark.parametrize("replays", [1, 0, -3])
def test_one_run_compares_nothing_and_is_refused(replays):
    with pytest.raises(UsageError, match="compares nothing"):
        replay(lambda x: x, torch.ones(1), replays=replays)


@pytest.mark.parametrize("returned", [None, (), {}, [None]])
def test_no_outputs_is_an_error(returned):
    with pytest.raises(UsageError, match="returned no outputs"):
        assert_replays_bit_exact(lambda x: returned, torch.ones(1))


def test_mutated_inputs_do_not_leak_into_the_next_run_or_to_the_caller():
    tensor = torch.ones(3)

    assert_replays_bit_exact(lambda x: x.mul_(2), tensor)

    assert torch.equal(torch.ones(3), tensor)


def test_a_buffer_that_every_run_returns_is_compared_as_it_was():
    buffer, values = torch.zeros(2), iter([1.0, 1.0, 2.0])

    expected = 1
    assert expected == count_differing_replays(lambda: buffer.fill_(next(values)), replays=3)


def test_inputs_may_be_positional_keywords_or_one_tensor():
    x = torch.ones(2)

    for inputs in ((x, 3), [x, 3], {"a": x, "b": 3}):
        assert_replays_bit_exact(lambda a, b: a * b, inputs)
    assert_replays_bit_exact(lambda a: a * 2, x)


def test_every_random_state_is_rewound_and_left_as_found():
    def draw(x):
        return x + torch.rand(1), random.random(), float(np.random.rand())

    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before = (torch.get_rng_state(), random.getstate())

    assert_replays_bit_exact(draw, torch.ones(1))

    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert count_differing_replays(draw, torch.ones(1), restore_rng=False) == 2


def test_gradients_are_compared_with_the_layout_of_grad_outputs_kept():
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient.stride())
            return gradient * 2

    x = torch.ones(2, 3, requires_grad=True)
    result = assert_replays_bit_exact(Double.apply, x, backward=True, grad_outputs=torch.ones(1).expand(2, 3))

    assert result.tensors == 2
    assert {(0, 0)} == set(seen)
    assert x.grad is None


def test_a_racy_backward_is_named():
    calls = []

    class Racing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            calls.append(1)
            return gradient + len(calls)

    result = replay(Racing.apply, torch.ones(2, requires_grad=True), backward=True)

    assert result.differing == 2
    assert "gradient of input: 2/2 differ" in result.first_difference


def test_backward_without_anything_to_differentiate_is_refused():
    with pytest.raises(UsageError, match="no input requires a gradient"):
        replay(lambda x: x * 2, torch.ones(1), backward=True)
    with pytest.raises(UsageError, match="no output requires a gradient"):
        replay(lambda x: x.detach(), torch.ones(1, requires_grad=True), backward=True)
    with pytest.raises(UsageError, match="2 grad_outputs for 1 outputs"):
        replay(lambda x: x * 2, torch.ones(1, requires_grad=True), backward=True, grad_outputs=(torch.ones(1), torch.ones(1)))


def test_contention_on_the_cpu_is_refused_aloud_once():
    with pytest.warns(ContentionWarning, match="no contention on cpu") as caught:
        result = replay(lambda x: x, torch.ones(1), replays=5, contention=True)

    assert len(caught) == 1
    assert "no contention on cpu" in result.notes[0]


def test_reading_uninitialised_memory_shows_under_poison():
    def careless(x):
        workspace = torch.empty(4)
        workspace[:3] = x
        return workspace

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = replay(careless, torch.ones(3), poison=True)

    assert result.differing == 2
    assert "the first at [3]" in result.first_difference
    assert_replays_bit_exact(lambda x: torch.zeros_like(x) + torch.empty_like(x).fill_(1), torch.ones(3), poison=True)


def test_a_module_gives_outputs_buffers_and_parameter_gradients():
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    module[0].weight.grad = torch.full((3, 4), 7.0)
    before = {name: value.clone() for name, value in module.state_dict().items()}

    result = assert_module_replays_bit_exact(module, (torch.randn(8, 4, requires_grad=True),), poison=True)

    # output, gradient of the input, 4 parameters, 3 buffers of the norm
    assert result.tensors == 9
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(torch.full((3, 4), 7.0), module[0].weight.grad)


@dataclass
class Out:
    logits: torch.Tensor
    cache: torch.Tensor | None = None


def test_a_module_whose_parameter_gradient_races_is_named():
    class Racing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.calls = 0
            self.weight.register_hook(self._nudge)

        def _nudge(self, gradient):
            self.calls += 1
            return gradient + (self.calls == 2)

        def forward(self, x):
            return Out(x * self.weight)

    result = replay_module(Racing(), torch.ones(2, 3), replays=3)

    assert result.differing == 1
    assert "run 2: gradient of parameter weight: 3/3 differ" in result.first_difference
    with pytest.raises(AssertionError, match="Racing: 1 of 2 replays differ"):
        assert_module_replays_bit_exact(Racing(), torch.ones(2, 3))


def test_the_modules_state_comes_back_after_an_exception():
    class Failing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            with torch.no_grad():
                self.weight.add_(1)
            raise ZeroDivisionError

    module = Failing()
    with pytest.raises(ZeroDivisionError):
        replay_module(module, torch.ones(1))

    assert float(module.weight.detach()) == 1.0
