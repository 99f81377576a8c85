"""``run --recipe NAME`` is a run of a program whose options stand for what was not given."""

import pytest

from perfgate.cli._requests import with_recipe
from perfgate.errors import UsageError

NOTHING = {"command": None, "mode_args": None, "judge": None, "step_range": None, "steps": None, "thresholds": None}
NOTHING |= {"device": "cpu", "blocks": None, "recipe": None, "recipe_size": None}
ARMS = ["default=--arm default", "deterministic=--arm deterministic", "champion=--arm champion"]


def asked(**given):
    return with_recipe({**NOTHING, **given})


def test_without_a_recipe_nothing_changes():
    expected = {name: value for name, value in NOTHING.items() if not name.startswith("recipe")} | {"blocks": 2}

    assert expected == asked(blocks=2)


def test_a_recipe_fills_what_was_not_given():
    given = asked(recipe="moe", judge="deterministic")

    assert ["perfgate", "recipe", "moe", "--size", "tiny"] == given["command"][2:7]
    assert (ARMS, "deterministic", "11:41", None) == tuple(
        given[name] for name in ("mode_args", "judge", "steps", "thresholds")
    )


def test_what_stands_behind_the_dashes_and_more_arms_are_added():
    given = asked(recipe="dense", command=["--seed", "3"], mode_args=["filled=--arm deterministic --memory-fill"])

    assert ["--seed", "3"] == given["command"][-2:]
    assert [*ARMS, "filled=--arm deterministic --memory-fill"] == given["mode_args"]


@pytest.mark.parametrize("given", [{"recipe_size": "tiny"}, {"recipe": "gpt"}, {"recipe": "moe", "recipe_size": "huge"}])
def test_names_that_are_none_are_refused(given):
    with pytest.raises(UsageError):
        asked(**given)
