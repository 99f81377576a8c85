"""The table that the READMEs show, from a stored run."""

from dataclasses import replace

from perfgate.model import Memory, Work
from reports.table import HEAD, table
from tests.unit.render import samples


def cells(*comparisons, match=""):
    lines = list(table(comparisons, (4.2, 790.0), match))
    return [dict(zip(HEAD, [cell.strip() for cell in line.strip("|").split("|")], strict=True)) for line in lines[2:]]


def test_a_range_is_one_line_with_the_judged_one_against_the_others():
    champion = replace(samples.comparison(), memory=Memory(0, 72 << 20, output_bytes=64 << 20), work=Work(604_000_000, 1))
    stock = samples.comparison(implementation="torch.stock", role="stock_deterministic", kernels=(("a", 600_000),))
    racy = samples.comparison(implementation="cuda.atomic", role="contender", kernels=(("b", 401_000),))
    (line,) = cells(champion, stock, racy)

    assert ("1029", "600", "**482.1** triton.gather", "0.469") == (
        line["default"], line["stock deterministic"], line["judged"], line["ratio"]
    )  # fmt: skip
    assert "30% copy" == line["of peak"]
    assert ("401 cuda.atomic", "8.0 MiB", "0 of 30 (default: 28 of 30)") == (
        line["contender"], line["workspace"], line["differ"]
    )  # fmt: skip


def test_many_operations_a_byte_are_held_against_the_matrix_ceiling():
    (line,) = cells(samples.comparison(work=Work(1_000_000, 200_000_000_000)))

    assert "53% matrix" == line["of peak"]


def test_what_was_not_measured_is_a_dash_and_what_is_not_wanted_is_left_out():
    nothing = samples.unmeasured("moe/permute", "triton.sort")
    (line,) = cells(nothing, samples.comparison(), match="permute")

    assert ("**–** triton.sort", "–", "–") == (line["judged"], line["of peak"], line["workspace"])
