"""The story of ``perfgate run -- CMD``: prepare, run block after block, judge, write."""

from __future__ import annotations

from datetime import UTC, datetime

from perfgate.card_lock import only_one_on
from perfgate.config import Config
from perfgate.gate import Finished
from perfgate.program.options import ProgramOptions
from perfgate.program.prepared import prepare
from perfgate.program.session import ProgramSession
from perfgate.session import Progress
from perfgate.store import RunDirectory


def run(config: Config, options: ProgramOptions, *, command: str, progress: Progress) -> Finished:
    """The whole gate. A run that is cut short is written too, as ``complete: false``, and can never pass."""
    prepared = prepare(config, options)
    directory = RunDirectory.create(config.out, datetime.now(UTC))
    session = ProgramSession(prepared, directory, command, progress)
    with only_one_on(*prepared.cards, say=progress.say), session.concluded():
        session.measure()
    return Finished(session.result(), directory)
