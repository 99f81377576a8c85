"""One measurement per card: a lock file that every perfgate on this machine takes before it measures on a GPU."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from perfgate.errors import UnusableError
from perfgate.nvml import describe

POLL_SECONDS = 0.5


@contextmanager
def only_one_on(
    *devices: str, say: Callable[[str], None], patience: float = 3600.0, folder: Path | None = None
) -> Iterator[None]:
    """Holds the cards behind ``devices`` ("cuda:0") until the block ends; waits where another run holds one, and says so.

    Several are taken in the order of their locks' names, the same in every process, so that no two runs wait for each other.

    The lock belongs to the open file, so it goes with the process however that ends. A CPU is not locked. Machines whose jobs
    run in containers must share ``folder`` (the temporary directory, or $PERFGATE_LOCKS). Raises :class:`UnusableError` (exit
    code 5: nothing was measured) after ``patience`` seconds.
    """
    locks = {lock_file(device, folder): device for device in devices if device.startswith("cuda")}
    with ExitStack() as held:
        for path in sorted(locks):
            handle = _opened(path)
            held.callback(os.close, handle)
            _take(handle, path, locks[path], say, patience)
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps({"pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}).encode())
        yield


def lock_file(device: str, folder: Path | None = None) -> Path:
    """The lock of one card, named by the hash of its uuid, so that it is the same under every CUDA_VISIBLE_DEVICES."""
    facts, _ = describe(device)
    card = str(facts.get("id") or device.replace(":", ""))
    return (folder or Path(os.environ.get("PERFGATE_LOCKS") or tempfile.gettempdir())) / f"perfgate-{card}.lock"


def _opened(path: Path) -> int:
    """The file, made where it is missing; writable by all users, since any of them may measure next."""
    try:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        os.fchmod(handle, 0o666)
    except OSError as error:
        text = f"the card's lock {path} can't be opened: {error.strerror}"
        raise UnusableError(text, "set PERFGATE_LOCKS to a folder that every user of the card can write") from error
    return handle


def _take(handle: int, path: Path, device: str, say: Callable[[str], None], patience: float) -> None:
    started, told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(path)
            if time.monotonic() - started > patience:
                text = f"another run has held {device} for {patience:g} s ({holder}); nothing was measured"
                raise UnusableError(text, "wait for it, or name another card: --device N") from None
            if not told:
                say(f"waiting: another run measures on {device} ({holder})")
                told = True
            time.sleep(POLL_SECONDS)
        else:
            return


def _holder(path: Path) -> str:
    try:
        known = json.loads(path.read_text())
        return f"process {int(known['pid'])}, since {str(known['since'])[:30]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "process unknown"
