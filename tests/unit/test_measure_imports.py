"""A submodule of `perfgate.measure` must not take the place of a function of the same name."""

from __future__ import annotations

import importlib
import pkgutil

import perfgate.measure


def test_importing_every_submodule_changes_nothing():
    before = {name: value for name, value in vars(perfgate.measure).items() if callable(value)}
    for info in pkgutil.iter_modules(perfgate.measure.__path__):
        importlib.import_module(f"perfgate.measure.{info.name}")

    assert before == {name: vars(perfgate.measure)[name] for name in before}
