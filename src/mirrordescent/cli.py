"""The command `rmd`: finds the subcommand that was asked for, calls it, and reports errors in one line."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

try:
    import rich  # noqa: F401
    import tyro  # noqa: F401
except ImportError:  # pragma: no cover - an install without the extra
    sys.exit("rmd: the command needs more packages than the library: pip install 'mirrordescent[lab]'")

from mirrordescent import __version__
from mirrordescent.commands.comparing import bench, continual, reproduce
from mirrordescent.commands.data import data_fetch, data_list, data_verify
from mirrordescent.commands.labels import audit, clean
from mirrordescent.commands.training import demo, report, sweep, train
from mirrordescent.lab.data import DataError
from mirrordescent.lab.memory import keep_freed_memory, ran_out
from mirrordescent.lab.names import first_line, unknown
from mirrordescent.lab.records import RunError
from mirrordescent.lab.signals import ending, handled
from mirrordescent.lab.usage import called


@dataclass(frozen=True)
class Command:
    """A subcommand's function, and examples of its use for the help."""

    function: Callable[..., int]
    examples: str


COMMANDS = {
    "demo": Command(demo, "  rmd demo\n  rmd demo --seeds 1 --out runs/quick"),
    "train": Command(
        train,
        "  rmd train --corruption 0.4 --epochs 20\n"
        "  rmd train --corruption 0.4 --epochs 20 --algorithm weight-decay --lam 0.1\n"
        "  rmd train --epochs 20 --potential q=1.5 --lr 0.2 --lam 4",
    ),
    "sweep": Command(sweep, "  rmd sweep --corruption 0.4 --root runs/lam --grid algorithm=sgd,rmd lam=1,2,4 seed=0,1"),
    "report": Command(report, "  rmd report runs"),
    "audit": Command(
        audit,
        "  rmd audit digits --corruption 0.2\n"
        "  rmd audit animals.csv --label species\n"
        "  rmd audit photos --out photos-audit",
    ),
    "clean": Command(
        clean,
        "  rmd clean digits --corruption 0.2 --out digits-cleaned.npz\n"
        "  rmd clean animals.csv --label species --decisions decisions.csv\n"
        "  rmd clean photos --relabel --rounds 2",
    ),
    "reproduce": Command(
        reproduce,
        "  rmd reproduce --table 40 --quick\n"
        "  rmd reproduce --minutes 30 --root runs/paper\n"
        "  rmd reproduce --table 40 25 --methods rmd-batch --lams 1 1.2 --seeds 0 --epochs 1500\n"
        "  rmd reproduce --report-only --root runs/paper",
    ),
    "continual": Command(
        continual,
        "  rmd continual\n"
        "  rmd continual --methods ewc anchored --tasks 2 --seeds 1\n"
        "  rmd continual --data mnist --samples 2000 --kind split --root runs/split",
    ),
    "bench": Command(
        bench,
        "  rmd bench\n  rmd bench --model mlp --batch-size 32 --seconds 5\n  rmd bench --potentials l1 linf hypentropy",
    ),
    "data list": Command(data_list, "  rmd data list"),
    "data fetch": Command(data_fetch, "  rmd data fetch mnist\n  rmd data fetch cifar10 --from cifar-10-binary.tar.gz"),
    "data verify": Command(data_verify, "  rmd data verify mnist"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for a failure, 2 for a usage error, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show λ must not end the command
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with handled(_end, *ending()), warnings.catch_warnings():
            # one line, without the place in the source; the type stubs want every argument named
            warnings.showwarning = lambda message, *_: _say(f"note: {message}", 0)  # type: ignore[assignment]
            keep_freed_memory()
            code = dispatch(arguments)
            if sys.stdout is not None:  # it is None after a shell's `>&-`
                sys.stdout.flush()
            return code
    except ValueError as error:
        return _say(error, 1 if isinstance(error, DataError) else 2)
    except BrokenPipeError:  # `rmd ... | head`: the reader has left, which is no error to report
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would fail, too
        return 1
    except OSError as error:
        return _say(_told(error), 1)
    except RunError as error:
        return _say(error, 1)
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        told = f"memory ran out ({first_line(error)})"
        return _say(f"{told}; smaller batches, fewer runs at once or fewer samples need less of it", 1)
    except KeyboardInterrupt:
        return _say("stopped; the same command continues from here", 130)


def _end(_number: int, _frame: FrameType | None) -> None:
    """Treat SIGTERM and a hang-up like Ctrl-C, so that work under way is saved first."""
    raise KeyboardInterrupt


def dispatch(arguments: list[str]) -> int:
    """Find the command and call it. Raises ValueError for one that does not exist."""
    if arguments[:1] == ["help"]:  # rmd help train
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(overview())
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"rmd {__version__}\n")
        return 0
    words = 2 if any(name.startswith(arguments[0] + " ") for name in COMMANDS) else 1
    if words == 2 and (len(arguments) == 1 or arguments[1] in ("-h", "--help")):
        sys.stdout.write(overview(arguments[0] + " "))
        return 0
    name = " ".join(arguments[:words])
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    command = COMMANDS[name]
    return called(command.function, arguments[words:], f"rmd {name}", command.examples)


def overview(prefix: str = "") -> str:
    """The commands, each with the first line of its docstring. prefix: list only those that begin with it."""
    width = shutil.get_terminal_size().columns
    chosen = []
    for name, command in COMMANDS.items():
        if name.startswith(prefix):
            line = f"  rmd {name:<14}{(command.function.__doc__ or '').splitlines()[0]}"
            chosen.append(textwrap.fill(line, max(width, 60), subsequent_indent=20 * " ", break_on_hyphens=False))
    head = "" if prefix else "Train with explicit regularization by any convex potential.\n\n"
    tail = "rmd COMMAND --help explains a command, with examples. rmd --version prints the version.\n"
    return head + "".join(f"{line}\n" for line in chosen) + "\n" + tail


def _told(error: OSError) -> str:
    """An OSError for a person: the path, the reason and a remedy, without the error number."""
    if error.filename is None and error.errno == errno.ENOSPC:  # `files.written` names its files
        return f"the standard output cannot be written to: {error.strerror}"
    if error.filename is None or error.strerror is None:
        return str(error)
    if isinstance(error, (NotADirectoryError, FileExistsError)) and (file := _in_the_way(error.filename)) is not None:
        return f"{file} is a file, and a folder is needed there"
    where = "; choose another folder (--root, --out)" if isinstance(error, PermissionError) else ""
    if error.errno == errno.ENOSPC:
        where = "; make room, and the same command continues"
    return f"{os.fsdecode(error.filename)}: {error.strerror}{where}"


def _in_the_way(name: str | bytes) -> Path | None:
    """The file that has the place of a folder, at a path or above it."""
    path = Path(os.fsdecode(name))
    return next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None)


def _say(what: Any, code: int) -> int:
    if sys.stderr is not None:  # it is None after a shell's `2>&-`
        sys.stderr.write(f"rmd: {' '.join(str(what).split())}\n")
    return code
