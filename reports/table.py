"""A Markdown table of a run, one line per range: what the READMEs of the workloads show.

python reports/table.py reports/h200/TOPIC [--match REGEX] [--peak-copy 4.2] [--peak-matrix 790]

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

HEAD = ("range", "default", "stock deterministic", "judged", "ratio", "of peak", "contender", "workspace", "differ", "error")


def main() -> None:
    """Reads the command line, prints the table."""
    parser = argparse.ArgumentParser(description="A Markdown table of a run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--match", default="")
    parser.add_argument("--peak-copy", type=float, default=4.2, help="TB/s, read + written")
    parser.add_argument("--peak-matrix", type=float, default=790.0, help="TFLOP/s")
    given = parser.parse_args()
    ceilings = (given.peak_copy, given.peak_matrix)
    sys.stdout.write("\n".join(table(load_result(given.run).comparisons, ceilings, given.match)) + "\n")


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
    memory = one.memory
    if memory.deterministic_bytes is None or memory.output_bytes is None:
        return "–"
    return f"{(memory.deterministic_bytes - memory.output_bytes) / 2**20:.1f} MiB"


def _us(one: Comparison | None) -> float | None:
    return None if one is None or one.deterministic is None else _ns(one, one.deterministic)


def _ns(one: Comparison, arm: object) -> float | None:
    value = getattr(arm, f"{one.metric}_ns")
    return None if value is None else value / 1e3


def _text(us: float | None) -> str:
    return "–" if us is None else f"{us:.0f}" if us >= 1000 else f"{us:.4g}"


if __name__ == "__main__":
    main()
