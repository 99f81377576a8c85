"""The flags are set without torch's compiler, which then still finds them set."""

import subprocess
import sys

import pytest

from perfgate.determinism import torch_flags

SET = """
import sys
from perfgate.determinism.torch_flags import flags, flags_of, set_flags
import torch
set_flags(flags_of({mode}))
light = "torch._inductor" not in sys.modules
import torch._inductor.config
print(light, flags()["deterministic_algorithms"], torch._inductor.config.deterministic)
set_flags(flags_of(not {mode}))
print(flags()["deterministic_algorithms"], torch._inductor.config.deterministic)
"""


@pytest.mark.parametrize("mode", [True, False])
def test_the_compiler_is_not_imported_and_finds_the_mode_when_it_is(mode):
    done = subprocess.run([sys.executable, "-c", SET.format(mode=mode)], capture_output=True, text=True, check=True)

    assert [f"True {mode} {mode}", f"{not mode} {not mode}"] == done.stdout.splitlines()


def test_a_torch_without_the_inner_switch_is_asked_publicly(monkeypatch):
    import torch

    asked = []
    monkeypatch.delattr(torch._C, "_set_deterministic_algorithms")
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *given, **named: asked.append((given, named)))

    torch_flags._switch(True, False)

    assert [((True,), {"warn_only": False})] == asked
