"""The table that the READMEs show, from a stored run."""

from dataclasses import replace

from perfgate.model import Accuracy, Memory, Work
from reports.table import EVERY, HEAD, every, table
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


def test_every_implementation_has_a_line_with_the_default_first_and_the_quotient_to_a_named_one():
    champion = replace(
        samples.comparison(),
        memory=Memory(80 << 20, 72 << 20, output_bytes=64 << 20),
        work=Work(1, 482_100_000_000),
        accuracy=Accuracy(2.5e-3, 2.4e-3),
    )
    racy = samples.comparison(implementation="cuda.atomic", role="contender", kernels=(("b", 401_000),))
    lines = list(every((champion, racy), "cuda.atomic"))
    default, judged, contender = (
        dict(zip(EVERY, [cell.strip() for cell in line.strip("|").split("|")], strict=True)) for line in lines[2:]
    )

    assert "of cuda.atomic" in lines[0]
    assert ("1029", "1", "2.566", "16.0 MiB", "28 of 30", "2.50e-03") == tuple(
        default[name] for name in ("us", "of default", "of {}", "workspace", "differ", "error")
    )
    assert ("triton.gather", "482.1", "1000", "1.202", "8.0 MiB", "0 of 30", "2.40e-03") == tuple(
        judged[name] for name in ("implementation", "us", "TFLOP/s", "of {}", "workspace", "differ", "error")
    )
    assert ("cuda.atomic", "401", "–", "1.000") == tuple(
        contender[name] for name in ("implementation", "us", "TFLOP/s", "of {}")
    )


def test_what_was_not_measured_is_a_dash_in_the_long_table_too():
    nothing = samples.unmeasured("moe/permute", "triton.sort")
    lines = list(every((nothing, samples.comparison()), match="permute"))

    assert ["–"] * 4 == [cell.strip() for cell in lines[-1].strip("|").split("|")][2:6]
