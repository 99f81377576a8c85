import csv
import io

from perfgate.render import FORMATS
from tests.unit.render import samples


def rows(result):
    return list(csv.DictReader(io.StringIO(FORMATS["csv"](result))))


def test_one_line_per_comparison_unrounded():
    row = next(row for row in rows(samples.mixed()) if row["implementation"] == "triton.gather" and row["op"] == "moe/combine")
    comparison = samples.comparison()

    assert comparison.ratio == float(row["ratio"])
    assert str(comparison.deterministic.busy_ns) == row["deterministic_busy_ns"]
    assert row["budget_place"] == "thresholds/h200.toml:12"


def test_what_was_not_measured_is_empty_and_never_zero():
    row = next(row for row in rows(samples.mixed()) if row["status"] == "error")

    assert [row[name] for name in ("ratio", "deterministic_busy_ns", "bits_differing", "rank", "delta_ns")] == [""] * 5


def test_no_cell_starts_like_a_formula_and_none_holds_a_line_end():
    text = FORMATS["csv"](samples.hostile())
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    numbers = [cell for cell in cells if cell.startswith("-")]

    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r", "|", "%"))]
    assert all(float(number) < 0 for number in numbers)
    assert len(text.splitlines()) == 1 + len(samples.hostile().comparisons)


def test_a_run_without_comparisons_still_has_a_header():

    assert rows(samples.result([])) == []
    assert FORMATS["csv"](samples.result([])).startswith("range,")
