import re

import pytest
from markdown_it import MarkdownIt

from perfgate.model import RunVerdict
from perfgate.render import FORMATS
from tests.unit.render import samples

render = FORMATS["markdown"]


def parsed(text):
    return MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)


def test_the_verdict_comes_first_and_the_worst_range_before_the_best():
    text = render(samples.mixed())

    assert text.startswith("## ‼ ERROR (exit 6): 1 range could not run")
    assert text.index("embedding/backward") < text.index("loss/ce") < text.index("moe/combine")


def test_every_row_of_the_table_has_as_many_cells_as_its_head_whatever_the_names():
    rows = [0]
    for token in parsed(render(samples.hostile())):
        if token.type == "tr_open":
            rows.append(0)
        rows[-1] += token.type in ("td_open", "th_open")

    assert set(rows[1:]) == {10}
    assert len(rows) - 1 == 1 + len(samples.hostile().comparisons)


def test_no_name_becomes_html_a_link_an_image_or_a_mention():
    text = render(samples.hostile())
    inline = [child for token in parsed(text) for child in token.children or []]
    html = {child.content for child in inline if child.type == "html_inline"}
    outside_code = re.sub(r"(`+)[^`].*?\1", "", text)

    assert {child.type for child in inline} <= {
        "text",
        "code_inline",
        "html_inline",
        "softbreak",
        "strong_open",
        "strong_close",
    }
    assert html <= {"<!-- -->"}
    assert "@someone" not in outside_code
    assert "http://" not in outside_code


@pytest.mark.parametrize("character", ["\x1b", "\u202e", "\x00", "\u200b"])
def test_nothing_that_steers_the_text_gets_through(character):

    assert character not in render(samples.hostile())


def test_footnotes_name_the_next_action():

    assert "BITS\\_DIFFER: 3 of 30 replays differ, first at element 17 → perfgate run --op loss/ce" in render(samples.mixed())


def test_cpu_figures_say_so_before_any_figure():
    text = render(samples.on_cpu())

    assert text.index("CPU figures: no GPU verdict") < text.index("| verdict")


def test_a_200_op_run_with_12_implementations_stays_under_a_step_summarys_limit():
    text = render(samples.large())

    assert len(text.encode()) <= 2**20


def test_a_run_that_measured_nothing_says_so():
    text = render(samples.result([], verdict=RunVerdict("invalid", 5, {}, "nothing was measured")))

    assert text.startswith("## ! INVALID (exit 5): nothing was measured")
