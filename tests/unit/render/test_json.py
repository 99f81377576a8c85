import dataclasses
import json
import math

import pytest

from perfgate.errors import UsageError
from perfgate.model import Accuracy
from perfgate.render.json import dumps, loads
from tests.unit.render import samples


@pytest.mark.parametrize(
    "make", [samples.result, samples.mixed, samples.on_cpu, samples.hostile], ids=lambda make: make.__name__
)
def test_what_was_written_is_read_back_equal(make):
    expected = make()

    assert expected == loads(dumps(expected))


def test_the_text_is_strict_ascii_json_that_any_reader_takes():
    text = dumps(samples.hostile())

    assert text.isascii()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))["schema_version"] == 1


def test_nan_and_infinity_survive_and_are_never_null():
    odd = samples.comparison(accuracy=Accuracy(math.inf, math.nan, None))
    accuracy = loads(dumps(samples.result([odd]))).comparisons[0].accuracy

    assert accuracy.default == math.inf
    assert str(accuracy.deterministic) == "nan"
    assert accuracy.limit is None


def test_one_comparison_a_line_so_that_a_diff_shows_which_changed():
    before, after = samples.mixed(), samples.mixed()
    changed = dataclasses.replace(after.comparisons[3], ratio=2.0)
    after = dataclasses.replace(after, comparisons=(*after.comparisons[:3], changed, *after.comparisons[4:]))
    differing = [a for a, b in zip(dumps(before).splitlines(), dumps(after).splitlines(), strict=True) if a != b]

    assert len(differing) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{\"schema_version\": 1, \"run\": {", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no schema_version"),
        ("{}", "no schema_version"),
        ('{"schema_version": 99}', "schema version 99; this perfgate reads 1"),
        ('{"schema_version": "1"}', "schema version 1; this perfgate reads 1"),
        ('{"schema_version": 1}', "run: "),
    ],
)  # fmt: skip
def test_what_is_no_result_is_refused_in_words(text, said):
    with pytest.raises(UsageError) as caught:
        loads(text)

    assert said in caught.value.text
    assert caught.value.mend


def test_a_missing_field_is_named_with_its_place():
    fields = json.loads(dumps(samples.result()))
    del fields["comparisons"][0]["implementation"]
    with pytest.raises(UsageError) as caught:
        loads(json.dumps(fields))

    assert "comparisons.0.implementation" in caught.value.text


def test_a_field_that_a_newer_perfgate_added_is_no_obstacle():
    fields = json.loads(dumps(samples.result()))
    fields["comparisons"][0]["invented_later"] = 1

    assert samples.result() == loads(json.dumps(fields))
