"""How the answer of `perfgate compare` looks: as a document, as CSV, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfgate.model import Comparison, Metric, Reason, RunVerdict
    from perfgate.side_by_side import Row

MOST_PARTS = 5  # kernels named per range
MOST_NAMES = 8  # ranges of one side only


@dataclass(frozen=True)
class About:
    """What must be known of A or B: what its interval covers, the reader's notes, how CUDA graphs were traced."""

    interval: str
    notes: tuple[str, ...] = ()
    graph_modes: frozenset[str] = frozenset()


def modes_differ(a: About, b: About) -> bool:
    """Whether graphs were traced as a whole on one side and by node on the other: their figures can't be compared."""
    return bool(a.graph_modes and b.graph_modes and a.graph_modes != b.graph_modes)


@dataclass(frozen=True)
class Answer:
    """What `perfgate compare` found, as a document, a table or CSV."""

    a: str
    b: str
    metric: Metric
    rows: Sequence[Row]
    limit: int
    sides: tuple[About, About]
    judged: Mapping[str, Comparison]
    verdict: RunVerdict | None

    @property
    def both(self) -> list[Row]:
        return [row for row in self.rows if row.a is not None and row.b is not None]

    def only(self, side: str) -> list[str]:
        return [row.name for row in self.rows if getattr(row, "b" if side == "a" else "a") is None]

    def reasons(self, row: Row) -> tuple[Reason, ...]:
        return self.judged[row.name].reasons if row.name in self.judged else ()

    def notes(self) -> list[str]:
        """What must be known to read the figures."""
        notes = list(dict.fromkeys(note for side in self.sides for note in side.notes))
        if modes_differ(*self.sides):
            notes.append("CUDA graphs were traced as a whole on one side and by node on the other: not comparable")
        return [f"interval: {self.sides[0].interval}", *notes]

    def document(self) -> dict[str, Any]:
        """The answer as plain values; times in ns, what is not known is null."""
        from dataclasses import asdict

        return {
            "a": self.a,
            "b": self.b,
            "metric": self.metric,
            "interval": self.sides[0].interval,
            "ranges": [
                {
                    **{name: getattr(row, name) for name in ("name", "bucket", "a_ns", "b_ns", "delta_ns", "total_delta_ns")},
                    **{name: getattr(row, name) for name in ("ratio", "ratio_low", "ratio_high")},
                    "a_instances": row.a.instances if row.a else 0,
                    "b_instances": row.b.instances if row.b else 0,
                    "contributions": [asdict(part) for part in row.contributions],
                    "status": self.judged[row.name].status if row.name in self.judged else None,
                    "reasons": [asdict(reason) for reason in self.reasons(row)],
                }
                for row in self.both
            ],
            "only_a": self.only("a"),
            "only_b": self.only("b"),
            "notes": self.notes(),
            "verdict": asdict(self.verdict) if self.verdict else None,
        }

    def write_csv(self) -> None:
        """One line per range, those of one side included."""
        import csv
        import sys

        from perfgate.cli.ranges import spreadsheet_safe

        figures = ("a_ns", "b_ns", "ratio", "ratio_low", "ratio_high", "delta_ns", "total_delta_ns")
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["range", "bucket", "metric", *figures, "status"])
        for row in self.rows:
            values = ["" if getattr(row, name) is None else getattr(row, name) for name in figures]
            status = self.judged[row.name].status if row.name in self.judged else ""
            writer.writerow([spreadsheet_safe(row.name), row.bucket, self.metric, *values, status])

    def show(self, *, in_buckets: bool) -> None:
        """The leaderboard for people, its footnotes, and what only one side has."""
        import sys

        from perfgate.cli._console import out
        from perfgate.cli.ranges import WIDTH
        from perfgate.render._text import visible
        from perfgate.traces.names import BUCKETS

        console = out(None if sys.stdout.isatty() else WIDTH)
        shown = self.both[: self.limit]
        for part in BUCKETS if in_buckets else ("",):
            chosen = [row for row in shown if not part or row.bucket == part]
            if part:
                console.print(f"{part}: {len(chosen)} ranges", style="bold", markup=False, emoji=False)
            if chosen:
                console.print(self._grid(chosen))
        for line in self._footnotes(len(shown)):
            console.print(visible(line), markup=False, emoji=False, soft_wrap=True)

    def _grid(self, rows: Sequence[Row]) -> Any:
        from rich.table import Table
        from rich.text import Text

        from perfgate.cli.ranges import LONGEST_NAME
        from perfgate.render._text import cut, shorten, visible
        from perfgate.units import format_ratio, time_scale

        scale = time_scale(value for row in rows for value in (row.a_ns, row.b_ns))
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("range", overflow="fold")
        for header in (
            f"A {self.metric}\n{scale.unit}",
            f"B {self.metric}\n{scale.unit}",
            f"B − A\n{scale.unit}",
            "ratio",
            "interval",
        ):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("n", justify="right", no_wrap=True)
        if self.verdict:
            table.add_column("verdict", no_wrap=True)
        for row in rows:
            interval = "–" if row.ratio_low is None else f"{row.ratio_low:.3f} … {row.ratio_high:.3f}"
            figures = [scale.format(row.a_ns), scale.format(row.b_ns), scale.difference(row.delta_ns), format_ratio(row.ratio)]
            count = f"{row.a.instances if row.a else 0} / {row.b.instances if row.b else 0}"
            table.add_row(Text(cut(visible(row.name), LONGEST_NAME)), *figures, interval, count, *self._verdict(row))
            for part in row.contributions[:MOST_PARTS]:
                name = f"  {part.kind} {shorten(part.kernel)}" if part.kernel else f"  {part.kind}"
                table.add_row(Text(name), "", "", scale.difference(part.delta_ns))
        return table

    def _verdict(self, row: Row) -> list[str]:
        if not self.verdict:
            return []
        one = self.judged.get(row.name)
        return [f"{one.status} {one.reasons[0].code if one.reasons else ''}".rstrip() if one else "no budget"]

    def _footnotes(self, shown: int) -> list[str]:
        lines = [
            f"{shown} of {len(self.both)} ranges that both have, the largest total differences first; medians per instance"
        ]
        for side, names in (("A", self.only("a")), ("B", self.only("b"))):
            if names:
                more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
                lines.append(f"only in {side}: {', '.join(names[:MOST_NAMES])}{more}")
        lines += [f"note: {note}" for note in self.notes()]
        for reason in dict.fromkeys(reason for row in self.rows for reason in self.reasons(row)):
            lines.append(f"{reason.code}: {reason.text}" + (f" → {reason.next}" if reason.next else ""))
        if self.verdict:
            lines.append(f"{self.verdict.status.upper()}: {self.verdict.text}")
        return lines
