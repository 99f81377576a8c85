"""A Markdown table of a run, one line per range: what the READMEs of the workloads show.

python reports/table.py reports/h200/TOPIC [--match REGEX] [--peak-copy 4.2] [--peak-matrix 790]
python reports/table.py reports/h200/TOPIC --every --against triton_atomic

With ``--every`` a line per implementation instead, the default first; TFLOP/s where the op declares operations, and the
quotient of medians to the implementation named by ``--against``.
Times are medians of the judged metric in us; "of peak" is the least bytes (or floating-point operations) of the range over
the champion's time, as a fraction of the named ceiling (TB/s of a copy, TFLOP/s of a bf16 matrix product).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from perfgate.model import Comparison
from perfgate.render import _view
from perfgate.store import load_result

EVERY = ("range", "implementation", "us", "TFLOP/s", "of default", "of {}", "workspace", "differ", "error")
HEAD = ("range", "default", "stock deterministic", "judged", "ratio", "of peak", "contender", "workspace", "differ", "error")


def main() -> None:
    """Reads the command line, prints the table."""
    parser = argparse.ArgumentParser(description="A Markdown table of a run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--match", default="")
    parser.add_argument("--peak-copy", type=float, default=4.2, help="TB/s, read + written")
    parser.add_argument("--peak-matrix", type=float, default=790.0, help="TFLOP/s")
    parser.add_argument("--every", action="store_true", help="a line per implementation")
    parser.add_argument("--against", default="", help="with --every: the implementation that times are divided by, too")
    given = parser.parse_args()
    comparisons, ceilings = load_result(given.run).comparisons, (given.peak_copy, given.peak_matrix)
    names = {one.implementation for one in comparisons}
    if given.against and not (given.every and given.against in names):
        parser.error(f"--against {given.against}: with --every, one of {', '.join(sorted(names))}")
    lines = every(comparisons, given.against, given.match) if given.every else table(comparisons, ceilings, given.match)
    sys.stdout.write("\n".join(lines) + "\n")


def table(comparisons: tuple[Comparison, ...], ceilings: tuple[float, float], match: str = "") -> Iterator[str]:
    """The lines of the table, ranges whose name ``match`` is found in, in the run's order."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    by_range: dict[str, list[Comparison]] = {}
    for one in comparisons:
        if re.search(match, one.range):
            by_range.setdefault(one.range, []).append(one)
    for name, members in by_range.items():
        judged = next((one for one in members if one.judged), None)
        if judged is not None:
            yield f"| {' | '.join(_cells(name, judged, members, ceilings))} |"


def every(comparisons: tuple[Comparison, ...], against: str = "", match: str = "") -> Iterator[str]:
    """The lines of a table of all implementations, by range in the run's order; what was not measured is a dash."""
    yield _row(EVERY).format(against or "–")
    yield f"|{'---|' * len(EVERY)}"
    by_range: dict[str, list[Comparison]] = {}
    for one in comparisons:
        if re.search(match, one.range):
            by_range.setdefault(one.range, []).append(one)
    for members in by_range.values():
        whole = max(members, key=lambda one: (one.default is not None, one.bits.default_replays or 0))
        names = {one.implementation: _us(one) for one in members}
        if whole.default is not None:
            names[whole.default.implementation] = _ns(whole, whole.default)
            yield _row(_default_line(whole, names.get(against)))
        for one in members:
            yield _row(_line(one, names.get(against)))


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _line(one: Comparison, other: float | None) -> tuple[str, ...]:
    us, bits = _us(one), one.bits
    ratio = "–" if one.ratio is None else f"{one.ratio:.3f} [{one.ratio_low:.3f}, {one.ratio_high:.3f}]"
    differ = f"{bits.differing} of {bits.replays}" if bits.replays else "–"
    error = _error(one.accuracy.deterministic)
    return one.range, one.implementation, *_speed(one, us), ratio, _share(us, other), _workspace(one), differ, error


def _default_line(one: Comparison, other: float | None) -> tuple[str, ...]:
    us, bits = _ns(one, one.default), one.bits
    differ = f"{bits.default_differing} of {bits.default_replays}" if bits.default_replays else "–"
    workspace = _beyond(one.memory.default_bytes, one.memory.output_bytes)
    name = one.default.implementation if one.default else "default"
    return one.range, name, *_speed(one, us), "1", _share(us, other), workspace, differ, _error(one.accuracy.default)


def _speed(one: Comparison, us: float | None) -> tuple[str, str]:
    return _text(us), "–" if not us or not one.work.flops else f"{one.work.flops / us / 1e6:.0f}"


def _share(us: float | None, other: float | None) -> str:
    return "–" if not us or not other else f"{us / other:.3f}"


def _error(error: float | None) -> str:
    return "–" if error is None else f"{error:.2e}"


def _cells(name: str, judged: Comparison, members: list[Comparison], ceilings: tuple[float, float]) -> list[str]:
    by_role = {one.role: one for one in members}
    bits = judged.bits
    differ = f"{bits.differing} of {bits.replays}"
    if bits.default_differing:
        differ += f" (default: {bits.default_differing} of {bits.default_replays})"
    contenders = [one for one in members if one.role == "contender" and _us(one) is not None]
    fastest = min(contenders, key=lambda one: _us(one) or 0.0, default=None)
    return [
        name,
        _text(None if judged.default is None else _ns(judged, judged.default)),
        _text(_us(by_role.get("stock_deterministic"))),
        f"**{_text(_us(judged))}** {judged.implementation}",
        "–" if judged.ratio is None else f"{judged.ratio:.3f}",
        _of_peak(judged, ceilings),
        "–" if fastest is None else f"{_text(_us(fastest))} {fastest.implementation}",
        _workspace(judged),
        differ,
        _view.error_words(judged),
    ]


def _of_peak(one: Comparison, ceilings: tuple[float, float]) -> str:
    us = _us(one)
    amount, ceiling, word = (one.work.bytes, ceilings[0], "copy")
    if one.work.flops and one.work.bytes and one.work.flops > 50 * one.work.bytes:
        amount, ceiling, word = (one.work.flops, ceilings[1], "matrix")
    if not us or not amount:
        return "–"
    return f"{amount / us / 1e6 / ceiling:.0%} {word}"


def _workspace(one: Comparison) -> str:
    return _beyond(one.memory.deterministic_bytes, one.memory.output_bytes)


def _beyond(peak: int | None, output: int | None) -> str:
    return "–" if peak is None or output is None else f"{(peak - output) / 2**20:.1f} MiB"


def _us(one: Comparison | None) -> float | None:
    return None if one is None or one.deterministic is None else _ns(one, one.deterministic)


def _ns(one: Comparison, arm: object) -> float | None:
    value = getattr(arm, f"{one.metric}_ns")
    return None if value is None else value / 1e3


def _text(us: float | None) -> str:
    return "–" if us is None else f"{us:.0f}" if us >= 1000 else f"{us:.4g}"


if __name__ == "__main__":
    main()
