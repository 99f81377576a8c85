"""Whole views against stored ones. After a wanted change: ``python -m tests.unit.render.test_golden`` writes them anew."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from perfgate.render import FORMATS, terminal
from tests.unit.render import samples

FOLDER = Path(__file__).parents[2] / "golden"


def table(result, width, wide=False):
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(terminal.render(result, width=width, wide=wide), soft_wrap=True)
    return stream.getvalue()


VIEWS = {
    "leaderboard-80.txt": lambda: table(samples.mixed(), 80),
    "leaderboard-wide.txt": lambda: table(samples.mixed(), 160, wide=True),
    "leaderboard-cpu.txt": lambda: table(samples.on_cpu(), 80),
    "leaderboard.csv": lambda: FORMATS["csv"](samples.mixed()),
    "summary.md": lambda: FORMATS["markdown"](samples.mixed()),
    "annotations.txt": lambda: FORMATS["github"](samples.mixed()),
    "junit.xml": lambda: FORMATS["junit"](samples.mixed()),
    "hostile.md": lambda: FORMATS["markdown"](samples.hostile()),
}


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_the_view_is_as_stored(name):

    assert (FOLDER / name).read_text(encoding="utf-8") == VIEWS[name]()


if __name__ == "__main__":
    for name, make in VIEWS.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
