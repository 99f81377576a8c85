"""`perfgate ranges` without typer takes exactly what it takes with it, and leaves everything else to it."""

from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from perfgate.cli import ranges

PLAIN = [
    ["t.sqlite"],
    ["t.sqlite", "--format", "json"],
    ["--match", "a b", "t.sqlite", "--kernels"],
    ["t.sqlite", "--strip-ids", "--buckets", "--stat=total", "--group", "(x)", "--attribution", "process"],
]
OTHERS = [
    [],
    ["--help"],
    ["a.sqlite", "b.sqlite"],
    ["t.sqlite", "--form", "json"],
    ["t.sqlite", "--format"],
    ["t.sqlite", "--match", "--kernels"],
    ["t.sqlite", "--kernels=yes"],
    ["--", "t.sqlite"],
    [""],
]


@pytest.fixture
def app(monkeypatch):
    app = typer.Typer()
    app.callback()(lambda: None)
    ranges.register(app)
    return app


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_plain_calls_are_understood_the_same(app, monkeypatch, words):
    asked = []
    names = ("trace", "match", "attribution", "format_", "kernels", "strip_ids", "group", "stat", "buckets")
    monkeypatch.setattr(ranges, "answer", lambda *given: asked.append(dict(zip(names, given, strict=True))))
    CliRunner().invoke(app, ["ranges", *words], catch_exceptions=False)
    defaults = dict(zip(names, (Path(), None, "auto", "table", False, False, None, "median", False), strict=True))

    assert asked == [{**defaults, **ranges.plain(words)}]


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_everything_else_is_left_to_typer(words):
    assert ranges.plain(words) is None


def test_every_option_is_known_to_both(app):
    options = {
        name for parameter in get_command(app).commands["ranges"].params for name in parameter.opts if name.startswith("--")
    }

    assert options == {*ranges._FLAGS, *ranges._VALUES}
