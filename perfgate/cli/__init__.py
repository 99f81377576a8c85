"""The command line: one file per verb, found by name; the only code that prints to stdout or exits.

A verb's file is ``perfgate/cli/<verb>.py`` (``_`` for ``-``) with ``register(app)``. Verb files import what they use inside
their functions, so that ``perfgate --help`` stays fast and never imports torch or pandas.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from perfgate import __version__
from perfgate.cli._console import complain
from perfgate.errors import PerfgateError

if TYPE_CHECKING:
    import typer

_ROOM = 1 << 30  # bytes of address space
_LARGE_PAGE = 1 << 21
_FULL = (errno.ENOSPC, errno.EDQUOT)  # said by writing alone: other codes may come from an input


def build() -> typer.Typer:
    """The application with every verb registered."""
    import importlib
    import pkgutil

    import typer

    app = typer.Typer(
        name="perfgate",
        help="What determinism costs on this GPU, per NVTX range, against its budget, and whether the bits are equal.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    def version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"perfgate {__version__}")
            raise typer.Exit

    @app.callback()
    def root(_: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Print the version.")) -> None:
        pass

    for module in sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")):
        importlib.import_module(f"{__name__}.{module}").register(app)
    return app


def main() -> None:
    """Entry point of the ``perfgate`` command."""
    for name in ("stdout", "stderr"):  # `>&-`: nobody wants to read it
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
    try:
        _at_once(sys.argv[1:])
        build()(prog_name="perfgate")
    except PerfgateError as error:
        complain(error)
        sys.exit(error.exit_code)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # `perfgate run | head`: typer and rich would exit 1: "over budget"
            _reader_gone()
        raise
    except BrokenPipeError:
        _reader_gone()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno not in _FULL:
            _stumbled(error)
        complain(
            PerfgateError(f"the output can't be written: {error.strerror}", "make room, or give a file that can be written")
        )
        _without_stdout(2)
    except Exception as error:
        _stumbled(error)


def _stumbled(error: Exception) -> NoReturn:
    """A bug of ours: told as one, and never read as a pass."""
    if os.environ.get("PERFGATE_DEBUG"):
        raise error
    text = f"perfgate stumbled: {type(error).__name__}: {error}"
    complain(PerfgateError(text, "run it again with PERFGATE_DEBUG=1 and report the traceback: this is a bug"))
    sys.exit(6)


def _at_once(words: list[str]) -> None:
    """Answers a plain `perfgate ranges` without building the application, which takes longer than reading a small trace.

    For the same reason the garbage collector looks seldom, BLAS starts no threads, memory is kept, and numpy is not taken down
    at the end.
    """
    if words[:1] != ["ranges"]:
        return
    from perfgate.cli import ranges

    given = ranges.plain(words[1:])
    if given is None:
        return
    gc.set_threshold(100_000)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _keep_memory()
    ranges.answer(**given)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _keep_memory() -> None:
    """Lets glibc keep what arrays free for the next ones, of any thread: the kernel would have to clear every page anew.

    And asks for large pages, of which the kernel has fewer to hand out. Whoever tunes malloc by the environment keeps that:
    MALLOC_PERTURB_ would write to all of the room.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no memory that is given back when freed
        libc.mallopt(-8, 1)  # M_ARENA_MAX
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_size_t]
        libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
        if begin := libc.malloc(_ROOM):  # none of it is touched yet
            first = -(-begin // _LARGE_PAGE) * _LARGE_PAGE
            libc.madvise(first, begin + _ROOM - first, 14)  # MADV_HUGEPAGE
            libc.free(begin)


def _reader_gone() -> NoReturn:
    _without_stdout(141)


def _without_stdout(code: int) -> NoReturn:
    """Exits without another attempt to write what is still buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)
