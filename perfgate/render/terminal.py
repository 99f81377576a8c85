"""The leaderboard in a terminal: 80 columns by default, colour only as rich allows it, the verdict last, next to the prompt."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from perfgate import units
from perfgate.model import Comparison, GateResult, Metric, Reason, Status
from perfgate.render import _rates, _view
from perfgate.render._text import cut, visible

STYLES: dict[Status, str] = {
    "pass": "bold green",
    "fail": "bold red",
    "inconclusive": "bold yellow",
    "invalid": "bold magenta",
    "error": "bold red reverse",
    "skipped": "dim",
}
_ASCII = str.maketrans("✓✗‼○…−–×→★·≤’", "+x!o.--x>*-<'")
_GAP = "  "
_LEGEND = "★ the one that is judged · =2 tied, the intervals overlap · (racy) not deterministic · – not measured"
_LONGEST_SAID = 600
_LEAST_NAME = 18


@dataclass
class Leaderboard:
    """A rich renderable of finished lines; on a terminal that is not UTF-8 its marks fall back to ASCII."""

    lines: list[Text] = field(default_factory=list)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            if options.ascii_only:
                plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
                line = Text(plain, spans=line.spans, no_wrap=True, overflow="ignore")
            yield line

    def add(self, text: str = "", style: str = "") -> None:
        """One line that is never wrapped; ``text`` is not markup."""
        self.lines.append(Text(text, style=style, no_wrap=True, overflow="ignore", end="\n"))

    def wrap(self, text: str, width: int, indent: str = "", style: str = "") -> None:
        """A paragraph, later lines indented."""
        for line in textwrap.wrap(
            cut(text, _LONGEST_SAID), max(width, 20), subsequent_indent=indent, break_on_hyphens=False
        ) or [""]:
            self.add(line, style)


def render(result: GateResult, *, width: int, wide: bool = False) -> Leaderboard:
    """The leaderboard as a renderable for ``cli._console.out().print``, no line longer than ``width`` (at least 60) cells.

    ``wide`` adds operations, memory, bits, error and the achieved rate per implementation, and takes their columns.
    """
    width = max(width, 60)
    board = Leaderboard()
    groups = _view.groups(result)
    notes = _number_notes(groups)
    _head(board, result, width)
    if groups:
        _table(board, groups, _columns(result, groups, wide), notes, width, wide)
        board.wrap(_LEGEND, width, "  ", "dim")
    _footnotes(board, notes, width)
    _findings(board, result, width)
    board.add()
    board.wrap(_view.verdict_sentence(result), width, "  ", STYLES[result.verdict.status])
    return board


def _head(board: Leaderboard, result: GateResult, width: int) -> None:
    run = result.run
    about = [run.id, run.device, f"mode {run.mode}", f"profiler {run.profiler}", _view.parts(result)]
    board.wrap("perfgate · " + " · ".join(visible(part) for part in about if part), width, "  ", "bold")
    for banner in _view.banners(result):
        said = visible(banner.text) + (f"; next: {visible(banner.next)}" if banner.next else "")
        board.wrap(f"! {said}", width, "  ", "bold yellow")
    board.add()


@dataclass(frozen=True)
class _Column:
    head: str
    unit: str
    cells: dict[str, str]  # by comparison name

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.head, self.unit, *self.cells.values())))


def _columns(result: GateResult, groups: list[_view.Group], wide: bool) -> list[_Column]:
    comparisons = [entry.comparison for group in groups for entry in group.entries]
    metric = _view.main_metric(result)
    before = {c.name: _view.figure(c.default, c.metric) for c in comparisons}
    after = {c.name: _view.figure(c.deterministic, c.metric) for c in comparisons}
    scale = units.time_scale([*before.values(), *after.values()])
    columns = [
        _Column("default", f"{metric} {scale.unit}", {name: scale.format(value) for name, value in before.items()}),
        _Column("this", scale.unit, {name: scale.format(value) for name, value in after.items()}),
        _Column("overhead", "%", {c.name: units.percent_number(units.overhead(c.ratio)) for c in comparisons}),
        _Column("95 % interval", "%", {c.name: _interval(c) for c in comparisons}),
        _Column("budget", "%", {c.name: _budget(c, metric) for c in comparisons}),
    ]
    if wide:
        memory = {c.name: _view.memory_delta(c) for c in comparisons}
        size = units.byte_scale(memory.values())
        columns += [
            _Column("GPU ops", "before → after", {c.name: _ops(c) for c in comparisons}),
            _Column("memory", f"Δ {size.unit}", {name: size.difference(value) for name, value in memory.items()}),
            _Column("bits", "", {c.name: _view.bits_words(c) for c in comparisons}),
            _Column("error", "rel. L2", {c.name: _view.error_words(c) for c in comparisons}),
            _Column("achieved", "", {c.name: _rates.achieved(c, c.deterministic, c.metric) for c in comparisons}),
        ]
    return columns


def _table(
    board: Leaderboard,
    groups: list[_view.Group],
    columns: list[_Column],
    notes: dict[Reason, int],
    width: int,
    wide: bool,
) -> None:
    names = [_entry_name(entry) for group in groups for entry in _rows(group)]
    room = width - sum(column.width + len(_GAP) for column in columns)
    name_width = max(min(max(map(cell_len, names)), room), _LEAST_NAME)
    board.add(_laid("", name_width, columns, [column.head for column in columns]), "bold")
    board.add(_laid("", name_width, columns, [column.unit for column in columns]), "dim")
    for group in groups:
        _range_line(board, group, notes, width, wide)
        for entry in _rows(group):
            cells = [column.cells[entry.comparison.name] for column in columns]
            style = "bold" if entry.comparison.judged else ""
            board.add(_laid(_entry_name(entry), name_width, columns, cells), style)
        _unmeasured(board, group, width)


def _rows(group: _view.Group) -> list[_view.Entry]:
    """The entries that get a row: measured, or judged."""
    return [entry for entry in group.entries if entry.comparison is group.head or entry.comparison.ratio is not None]


def _unmeasured(board: Leaderboard, group: _view.Group, width: int) -> None:
    """``– unsupported: triton.atomic, triton.exact``: one line per cause for those without a row."""
    shown = {id(entry) for entry in _rows(group)}
    by_word: dict[str, list[str]] = {}
    for entry in group.entries:
        if id(entry) not in shown:
            word = _view.standing(entry.comparison).word.replace("ranked", "not measured")
            by_word.setdefault(word, []).append(visible(entry.comparison.implementation))
    for word, names in by_word.items():
        board.wrap(f"   – {word}: {', '.join(names)}", width, "     ", "dim")


def _range_line(board: Leaderboard, group: _view.Group, notes: dict[Reason, int], width: int, wide: bool) -> None:
    """``✗ fail  moe/combine:typical:fwd [1] · equal, 30 replays``; what does not fit goes to a line of its own."""
    head = group.head
    mark = _view.standing(head)
    status = f"{mark.icon} {mark.word}"
    marks = "".join(f"[{notes[reason]}]" for reason in _view.shown_reasons(head))
    bits = "" if wide else f"bits {_view.bits_words(head)}"
    room = width - cell_len(status) - 2
    name = visible(group.range)
    tail = "".join(f" {part}" for part in (marks,) if part)
    if cell_len(name + tail) > room:
        name = cut(name, max(room - cell_len(tail), _LEAST_NAME))
    line = Text(no_wrap=True, overflow="ignore")
    line.append(status, STYLES[head.status] if head.judged else "dim").append("  ").append(name, "bold").append(tail)
    if bits and line.cell_len + cell_len(bits) + 3 <= width:
        line.append(f" · {bits}", "dim")
        bits = ""
    board.lines.append(line)
    if bits:
        board.add(f"     {bits}", "dim")


def _entry_name(entry: _view.Entry) -> str:
    role = {"contender": " (racy)", "stock_deterministic": " (stock)"}.get(entry.comparison.role, "")
    return f"{entry.place:>4} {visible(entry.comparison.implementation)}{role}{' ★' if entry.comparison.judged else ''}"


def _laid(name: str, name_width: int, columns: list[_Column], cells: Iterable[str]) -> str:
    shown = name if cell_len(name) <= name_width else f"{set_cell_size(name, name_width - 3)}…{_mark_at_end(name)}"
    padded = (" " * (column.width - cell_len(cell)) + cell for column, cell in zip(columns, cells, strict=True))
    return (set_cell_size(shown, name_width) + _GAP + _GAP.join(padded)).rstrip()


def _mark_at_end(name: str) -> str:
    return name[-2:] if name.endswith(" ★") else ""


def _interval(comparison: Comparison) -> str:
    if comparison.ratio_low is None or comparison.ratio_high is None:
        return units.MISSING
    return f"{units.percent_number(comparison.ratio_low - 1)} … {units.percent_number(comparison.ratio_high - 1)}"


def _budget(comparison: Comparison, metric: Metric) -> str:
    if comparison.budget is None:
        return units.MISSING if not comparison.judged else "none"
    other = "" if comparison.metric == metric else f" {comparison.metric}"
    return "≤ " + units.format_limit(comparison.budget.overhead).removesuffix(" %") + other


def _ops(comparison: Comparison) -> str:
    counts = [None if arm is None else arm.ops for arm in (comparison.default, comparison.deterministic)]
    return " → ".join(units.MISSING if count is None else str(count) for count in counts)


def _number_notes(groups: list[_view.Group]) -> dict[Reason, int]:
    """One number per distinct footnote, in reading order: the same words under twenty ranges are said once."""
    notes: dict[Reason, int] = {}
    for group in groups:
        for reason in _view.shown_reasons(group.head):
            notes.setdefault(reason, len(notes) + 1)
    return notes


def _footnotes(board: Leaderboard, notes: dict[Reason, int], width: int) -> None:
    if notes:
        board.add()
    for reason, number in notes.items():
        board.wrap(f"[{number}] {visible(reason.code)}: {visible(reason.text)}", width, "    ")
        if reason.next:
            board.wrap(f"    next: {visible(reason.next)}", width, "          ", "bold")


def _findings(board: Leaderboard, result: GateResult, width: int) -> None:
    findings = _view.findings(result)
    if findings or result.exempt:
        board.add()
    for finding in findings:
        said = f"{visible(finding.code)}: {visible(finding.text)}" + (
            f"; next: {visible(finding.next)}" if finding.next else ""
        )
        board.wrap(f"! {said}", width, "  ")
    for exempt in result.exempt:
        board.wrap(f"○ exempt {visible(exempt.op)}: {visible(exempt.reason)}", width, "  ", "dim")
