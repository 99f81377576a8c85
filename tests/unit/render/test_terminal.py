import dataclasses
import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from perfgate.model import Reason
from perfgate.render import terminal
from tests.unit.render import samples


def printed(result, width=80, wide=False, **options):
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, **options)
    console.print(terminal.render(result, width=width, wide=wide), soft_wrap=True)
    return stream.getvalue()


MAKERS = [samples.mixed, samples.hostile, samples.on_cpu, lambda: samples.large(20, 12), lambda: samples.result([])]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("width", "wide"), [(80, False), (100, False), (160, True)])
def test_no_line_is_wider_than_the_terminal(make, width, wide):
    widths = [cell_len(line) for line in printed(make(), width, wide).splitlines()]

    assert max(widths) <= width


def test_the_verdict_is_the_last_line():

    assert printed(samples.mixed()).splitlines()[-1] == "ERROR (exit 6): 1 range could not run, 2 of 6 judged fail"


def test_a_range_shows_its_figures_in_one_unit_with_interval_and_budget():
    text = printed(samples.result([samples.comparison("moe/permute", kernels=samples.SLOW, status="fail")]))
    line = next(line for line in text.splitlines() if "triton.gather" in line)

    assert line.split() == ["1", "triton.gather", "★", "1.029", "1.389", "+35.0", "+34.4", "…", "+35.5", "≤", "+15"]
    assert "busy ms" in text


def test_what_was_not_measured_is_a_dash():
    line = next(line for line in printed(samples.mixed()).splitlines() if "triton.sorted" in line)

    assert line.split()[3:] == ["1028.9", "–", "–", "–", "≤", "+15"]


def test_every_footnote_is_marked_and_names_its_next_action_once():
    text = printed(samples.mixed())

    assert "✗ fail  loss/ce:typical:fwd [2]" in text
    assert "[2] BITS_DIFFER: 3 of 30 replays differ, first at element 17\n    next: perfgate run --op loss/ce" in text


def test_a_reason_shared_by_ranges_is_one_footnote():
    same = dataclasses.replace(samples.mixed().comparisons[4])
    text = printed(samples.result([same, dataclasses.replace(same, op="moe/other")]))

    assert text.count("[1]") == 3
    assert text.count("OVER_BUDGET:") == 1
    assert "[2]" not in text


def test_a_tie_is_shown_as_a_tie_and_a_contender_as_not_deterministic():
    text = printed(samples.mixed())

    assert re.search(r"=2 triton\.gather ★ .*\n +=2 triton\.segment", text)
    assert "cuda.atomic (racy)" in text


def test_implementations_that_gave_nothing_share_a_line_per_cause():
    gone = Reason("UNSUPPORTED", "needs a GPU")
    rivals = [samples.unmeasured("moe/combine", name, judged=False, status="skipped", reasons=(gone,)) for name in ("a", "b")]
    text = printed(samples.result([samples.comparison(), *rivals]))

    assert "   – unsupported: a, b\n" in text


def test_cpu_figures_say_first_that_they_are_no_gpu_verdict():

    assert printed(samples.on_cpu()).splitlines()[1].startswith("! CPU figures: no GPU verdict")


def test_a_run_cut_short_says_that_it_cannot_pass():
    result = samples.result()
    result = dataclasses.replace(result, run=dataclasses.replace(result.run, complete=False))

    assert "The run was cut short; it is shown as far as it came and cannot pass" in " ".join(printed(result).split())


def test_not_a_terminal_no_colour():

    assert "\x1b" not in printed(samples.mixed())


def test_a_terminal_has_colour_unless_no_color_is_set(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = printed(samples.mixed(), force_terminal=True, color_system="truecolor")
    monkeypatch.setenv("NO_COLOR", "1")
    plain = printed(samples.mixed(), force_terminal=True, color_system="truecolor")

    assert "\x1b[1;32m✓ pass" in coloured
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain)


def test_the_difference_itself_is_never_coloured():
    coloured = printed(samples.mixed(), force_terminal=True, color_system="truecolor")
    line = next(line for line in coloured.splitlines() if "triton.segment" in line)

    assert "\x1b" not in line


@pytest.mark.parametrize("character", ["\x1b", "\u202e", "\x00", "\u200b", "\x07", "\r", "\t"])
def test_hostile_names_cannot_steer_the_terminal(character):

    assert character not in printed(samples.hostile())


def test_markup_in_names_is_text():
    text = printed(samples.result([samples.comparison(implementation="[red]x[/red]")]))

    assert "[red]x[/red]" in text


def test_a_console_that_is_not_utf8_gets_ascii():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    Console(file=stream, width=80).print(terminal.render(samples.hostile(), width=80), soft_wrap=True)
    stream.flush()

    assert b"x fail" in raw.getvalue()


def test_wide_adds_operations_memory_bits_and_error():
    text = printed(samples.mixed(), 160, wide=True)
    missing = [part for part in ("2 → 3", "+8.000", "equal, 30 replays", "1.2e-07 → 9.8e-08") if part not in text]

    assert missing == []
