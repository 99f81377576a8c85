"""A leaderboard for pull requests and step summaries: the verdict first, then the worst first."""

from __future__ import annotations

import re

from perfgate import units
from perfgate.model import Comparison, GateResult, Reason
from perfgate.render import _view
from perfgate.render._text import cut, visible

LIMIT = 2**20
_MOST_SAID = 50  # banners, findings and exempt ops each
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~$])")
_AUTOLINKED = re.compile(r"(@|#|:(?=//)|\bwww|\bGH-)")  # GitHub links these behind markdown's back; an empty comment parts them


def render(result: GateResult) -> str:
    """GitHub-flavoured markdown, without anything a name could inject (pipes, HTML, links, mentions).

    At most :data:`LIMIT` bytes, what GitHub takes as a step summary: where there is more, the best ranges are left out.
    """
    groups = _view.groups(result)
    shown = len(groups)
    while len((text := _page(result, groups[:shown], len(groups) - shown)).encode()) > LIMIT and shown:
        shown = min(shown - 1, shown * LIMIT // len(text.encode()))
    return text


def _page(result: GateResult, groups: list[_view.Group], left_out: int) -> str:
    lines = [f"## {_view.MARKS[result.verdict.status].icon} {escape(_view.verdict_sentence(result))}", ""]
    lines += [f"> **{escape(banner.text)}**{_next(banner)}\n" for banner in _view.banners(result)[:_MOST_SAID]]
    counted = ", ".join(f"{count} {_view.MARKS[status].word}" for status, count in _view.counts(result).items())
    lines += [f"Judged ranges: {counted}.", ""]
    lines += _table(result, groups)
    if left_out:
        lines += [f"{left_out} more ranges, better than these, are in report.html and leaderboard.csv.", ""]
    return "\n".join(lines + _details(groups) + _rest(result)) + "\n"


def escape(text: str, limit: int = 400) -> str:
    """``text`` as plain words inside markdown: no markup, no HTML, no link, no mention of anybody."""
    plain = _SPECIAL.sub(r"\\\1", cut(visible(text), limit).replace("&", "&amp;"))
    for character, entity in (("\\<", "&lt;"), ("\\>", "&gt;")):
        plain = plain.replace(character, entity)
    return _AUTOLINKED.sub(r"\1<!-- -->", plain)


def code(text: str, limit: int = 160) -> str:
    """``text`` as inline code, also inside a table: its fence is longer than any run of backticks in it."""
    shown = cut(visible(text), limit).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    return f"{fence} {shown} {fence}" if len(fence) > 1 else f"`{shown}`"


def _table(result: GateResult, groups: list[_view.Group]) -> list[str]:
    entries = [(group, entry) for group in groups for entry in group.entries]
    arms = [(e.comparison.metric, arm) for _, e in entries for arm in (e.comparison.default, e.comparison.deterministic)]
    scale = units.time_scale([_view.figure(arm, metric) for metric, arm in arms])
    main = _view.main_metric(result)
    figures = [f"{arm} {main} {scale.unit}" for arm in ("default", "this")]
    head = ["verdict", "range", "implementation", "rank", *figures, "overhead", "95 % interval", "budget", "bits"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|--:|--:|--:|--:|:-:|--:|---|"]
    for group, entry in entries:
        c = entry.comparison
        mark = _view.standing(c)
        cells = [
            f"{mark.icon} {escape(mark.word)}" + (" ★" if c.judged else ""),
            code(group.range) + ("" if c.metric == main else f" ({c.metric})"),
            code(c.implementation) + f" ({_view.ROLE_WORDS[c.role]})",
            entry.place,
            scale.format(_view.figure(c.default, c.metric)),
            scale.format(_view.figure(c.deterministic, c.metric)),
            units.format_percent(units.overhead(c.ratio)),
            interval(c),
            units.format_limit(c.budget.overhead) if c.budget else units.MISSING,
            _view.bits_words(c),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def interval(comparison: Comparison) -> str:
    """``+11.2 … +13.0 %``, or ``–`` where there is none."""
    if comparison.ratio_low is None or comparison.ratio_high is None:
        return units.MISSING
    low = units.percent_number(comparison.ratio_low - 1.0)
    return f"{low} … {units.format_percent(comparison.ratio_high - 1.0)}"


def _details(groups: list[_view.Group]) -> list[str]:
    lines = [
        f"- {code(c.name)} {escape(reason.code)}: {escape(reason.text)}{_next(reason)}"
        for c in (entry.comparison for group in groups for entry in group.entries)
        for reason in _view.shown_reasons(c)
        if c.judged
    ]
    return ["### Why, and what to do next", "", *lines, ""] if lines else []


def _rest(result: GateResult) -> list[str]:
    lines = [
        f"- {escape(finding.code)}: {escape(finding.text)}{_next(finding)}" for finding in _view.findings(result)[:_MOST_SAID]
    ]
    lines += [f"- {code(exempt.op)} is exempt: {escape(exempt.reason)}" for exempt in result.exempt[:_MOST_SAID]]
    found = ["### Findings", "", *lines, ""] if lines else []
    return [*found, f"Reproduce: {code(result.run.command, 1000)}"]


def _next(reason: Reason) -> str:
    return f" → {escape(reason.next)}" if reason.next else ""
