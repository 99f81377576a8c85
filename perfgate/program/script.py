"""``python -m perfgate.program.script train.py ARGS``: a script that never saw perfgate, under torch's side of the contract.

Puts the mode of ``$PERFGATE_MODE`` in force (torch's deterministic algorithms and flags; nothing where it is unset), then runs
the script as ``python train.py ARGS`` would; ``-m MODULE ARGS`` runs a module.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from perfgate.determinism.contract import MODES, apply
from perfgate.determinism.project import contract_of
from perfgate.errors import PerfgateError, UsageError


def main(arguments: Sequence[str]) -> None:
    """Runs the script; what it raises passes through. Raises :class:`UsageError` where there is no script to run."""
    wanted = os.environ.get("PERFGATE_MODE")
    for mode in MODES:
        if mode == wanted:
            apply(mode, contract=contract_of(Path.cwd()))
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        sys.argv = [arguments[1], *arguments[2:]]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if not arguments or not Path(arguments[0]).is_file():
        raise UsageError(f"no script {arguments[0] if arguments else ''}", "python -m perfgate.program.script train.py ARGS")
    sys.argv = list(arguments)
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PerfgateError as error:
        sys.stderr.write(f"error: {error.text}\nnext: {error.mend}\n")
        raise SystemExit(error.exit_code) from None
