"""``report.html``: one self-contained file that needs no network and no JavaScript; the same result gives the same bytes."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib.resources import files

import jinja2
from markupsafe import Markup

from perfgate import units
from perfgate.model import GateResult
from perfgate.render import _rates, _view
from perfgate.render._text import cut, shorten, visible, whole
from perfgate.render.html.page import page_of


def render(result: GateResult) -> str:
    """The report as HTML."""
    return environment().get_template("report.html.j2").render(page=page_of(result), **page_parts("report.css", "report.js"))


def page_parts(style: str, script: str) -> dict[str, object]:
    """A style sheet and a script of the package, ready to be put into a page, with the policy that lets only them run."""
    code = _asset(script)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return {"style": Markup(_asset(style)), "script": Markup(code), "policy": policy}  # noqa: S704 - our own files


@functools.cache
def environment() -> jinja2.Environment:
    """Templates with everything escaped; ``visible``, ``shorten`` and ``whole`` for strangers' names, ``p`` for percent."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("perfgate.render.html", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters.update(visible=visible, shorten=shorten, whole=whole, cut=cut, breakable=_breakable, p=_percent)
    made.globals.update(view=_view, rates=_rates, units=units)
    return made


def _percent(value: float) -> str:
    """A position with as few characters as show it: 12.35, 7, 0.1."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _breakable(text: str) -> Markup:
    """``text`` that may be broken behind a slash or a colon, where a reader expects it."""
    return Markup("<wbr>").join(re.split(r"(?<=[/:])", text))


def _asset(name: str) -> str:
    return (files("perfgate.render.html") / "assets" / name).read_text(encoding="utf-8").strip()
