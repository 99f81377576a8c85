"""``report.html``: one self-contained file that needs no network and no JavaScript."""

from __future__ import annotations

import functools

import jinja2

from perfgate import units
from perfgate.model import GateResult
from perfgate.render import _view
from perfgate.render._text import shorten, visible, whole


def render(result: GateResult) -> str:
    """The report as HTML; the same result gives the same bytes."""
    groups = _view.groups(result)
    arms = [
        _view.figure(arm, e.comparison.metric)
        for group in groups
        for e in group.entries
        for arm in (e.comparison.default, e.comparison.deterministic)
    ]
    page = _environment().get_template("report.html.j2")
    return page.render(result=result, groups=groups, scale=units.time_scale(arms), view=_view, units=units)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("perfgate.render.html", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(visible=visible, shorten=shorten, whole=whole)
    return environment
