"""The pytest plugin: fixture and marker ``bit_exact``, option ``--perfgate-replays``. Imports torch only when a test asks.

::

    @pytest.mark.bit_exact(replays=8, contention=True)
    def test_combine(bit_exact):
        bit_exact(combine, (rows, index))             # a function or a module; fails with the first difference
        bit_exact.control(racy_combine, (rows, index))  # reported: "this harness saw ... differ in 5 of 7 replays"

A test that carries the marker and compares nothing fails: "not measured" must not read as "pass".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perfgate.determinism.replay import Replays

DEFAULT_REPLAYS = 3
OPTIONS = ("replays", "backward", "grad_outputs", "contention", "poison", "restore_rng")
CLAIM, CONTROL = "perfgate_bit_exact", "perfgate_control"  # names of user properties, which survive pytest-xdist


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--perfgate-replays``."""
    group = parser.getgroup("perfgate", "bit-exact replays")
    group.addoption(
        "--perfgate-replays",
        type=_replays,
        default=None,
        metavar="N",
        help=f"runs per bit_exact check, the reference included: at least 2 (default: the marker's, or {DEFAULT_REPLAYS})",
    )


def _replays(text: str) -> int:
    import argparse

    if not text.isdigit() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} compares nothing: give at least 2")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line(
        "markers",
        f"bit_exact({', '.join(OPTIONS)}, deterministic): options for the bit_exact fixture in this test, which must use it; "
        "deterministic=True turns torch's deterministic algorithms on for the test",
    )


class BitExact:
    """What the fixture gives: call it to assert, ``control`` to see a race, ``differing`` to count."""

    def __init__(self, node: pytest.Item, options: dict[str, Any]) -> None:
        self._node, self._options = node, options
        self.checks = 0

    def __call__(self, subject: Callable[..., Any], inputs: Any = (), *, what: str = "", **options: Any) -> Replays:
        """Fails the test when a replay of a function or module differs from its first run in any bit.

        Options (the marker's where not given): those of :func:`perfgate.determinism.replay.replay`.
        """
        __tracebackhide__ = True
        from perfgate.determinism.replay import told

        self.checks += 1
        seen = self._replay(subject, inputs, options)
        name = what or told(subject)
        self._note(CLAIM, {"what": name, "compared": seen.compared, "differing": seen.differing})
        if seen.differing:
            pytest.fail(f"{name}: {seen}", pytrace=False)
        return seen

    def control(self, subject: Callable[..., Any], inputs: Any = (), *, what: str = "", **options: Any) -> Replays:
        """Replays something racy and reports how often it differed; doesn't fail, as hardware decides whether a race shows."""
        from perfgate.determinism.replay import told

        seen = self._replay(subject, inputs, options)
        self._note(CONTROL, {"what": what or told(subject), "compared": seen.compared, "differing": seen.differing})
        return seen

    def differing(self, subject: Callable[..., Any], inputs: Any = (), **options: Any) -> int:
        """How many replays differ from the first run."""
        self.checks += 1
        return self._replay(subject, inputs, options).differing

    def _replay(self, subject: Callable[..., Any], inputs: Any, options: dict[str, Any]) -> Replays:
        from perfgate.determinism.replay import replay_any

        return replay_any(subject, inputs, **{**self._options, **options})

    def _note(self, kind: str, content: dict[str, Any]) -> None:
        self._node.user_properties.append((kind, content))


@pytest.fixture
def bit_exact(request: pytest.FixtureRequest) -> Iterator[BitExact]:
    """Asserts that replays give the same bits; options come from ``@pytest.mark.bit_exact(...)`` and the command line."""
    options = _options_of(request.node)
    deterministic = options.pop("deterministic", None)
    checker = BitExact(request.node, options)
    request.node.stash[_CHECKER] = checker
    if deterministic is None:
        yield checker
        return
    from perfgate.determinism.torch_flags import deterministic_algorithms

    with deterministic_algorithms(deterministic):
        yield checker


_CHECKER = pytest.StashKey[BitExact]()


def _options_of(node: pytest.Item) -> dict[str, Any]:
    options: dict[str, Any] = {"replays": DEFAULT_REPLAYS}
    for marker in reversed(list(node.iter_markers("bit_exact"))):  # the closest marker wins
        unknown = [name for name in marker.kwargs if name not in (*OPTIONS, "deterministic")]
        if unknown or marker.args:
            wrong = unknown[0] if unknown else repr(marker.args[0])
            raise pytest.UsageError(
                f"{node.nodeid}: bit_exact marker has no option {wrong}; it has {', '.join(OPTIONS)}, deterministic"
            )
        options |= marker.kwargs
    asked = node.config.getoption("--perfgate-replays")
    return options if asked is None else options | {"replays": asked}


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Fails a marked test that ended without one comparison."""
    result = yield
    if pyfuncitem.get_closest_marker("bit_exact") is not None:
        checker = pyfuncitem.stash.get(_CHECKER, None)
        if checker is None or checker.checks == 0:
            pytest.fail("marked bit_exact, but nothing was compared: call the bit_exact fixture", pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tells what was compared, and whether this harness could see a race at all."""
    reports = [
        report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, []) if report.when == "call"
    ]
    notes = [(kind, content) for report in reports for kind, content in report.user_properties if kind in (CLAIM, CONTROL)]
    claims = [content for kind, content in notes if kind == CLAIM]
    controls = [content for kind, content in notes if kind == CONTROL]
    if not claims and not controls:
        return
    from perfgate.determinism.controls import sensitivity_told

    replays = sum(claim["compared"] for claim in claims)
    terminalreporter.section("perfgate: bit-exact replays")
    terminalreporter.line(
        f"{len(claims)} checks, {replays} replays compared, {sum(bool(c['differing']) for c in claims)} checks differ"
    )
    for control in controls:
        terminalreporter.line(sensitivity_told(control["what"], control["differing"], control["compared"]))
    if not controls:
        terminalreporter.line("unproven sensitivity: no test called bit_exact.control with something racy")
