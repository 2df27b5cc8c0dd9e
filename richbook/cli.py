"""The command `richbook`: doctor, lab, book, sweep, reproduce.

One function per command, registered in `COMMANDS`. Whatever is slow to import is imported inside.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A command: its help line, the function that does it, and what it accepts."""

    help: str
    run: Callable[[argparse.Namespace], int]
    arguments: Callable[[argparse.ArgumentParser], None] | None = None
    passes_on: bool = False  # whether unknown options go on to another program, as `options.rest`


def doctor(options: argparse.Namespace) -> int:
    """Check the installation and say in plain words what is missing. Returns 1 if anything is."""
    from richbook.course import checkup

    rows = checkup.examine()
    for row in rows:
        print(f"{row.mark} {row.subject:<14} {row.finding}")
    broken = any(row.needed and not row.fine for row in rows)
    print("\nThe book needs mending." if broken else "\nAll that the book needs is here.")
    for row in rows:
        if not row.fine:
            print(f"  - {row.subject}: {row.advice}")
    return 1 if broken else 0


def lab(options: argparse.Namespace) -> int:
    """Open JupyterLab on the chapters, or on the current folder outside a checkout."""
    from richbook.course.chapters import find_root
    from richbook.measure.errors import RichbookError

    try:
        folder = find_root() / "notebooks"
    except RichbookError:
        folder = Path.cwd()
        print(f"No checkout of the book here: opening {folder}.")
    command = [sys.executable, "-m", "jupyter", "lab", f"--ServerApp.root_dir={folder}"]
    environment = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1"}
    try:
        return subprocess.run([*command, *options.rest], env=environment).returncode
    except KeyboardInterrupt:
        return 0


def book(options: argparse.Namespace) -> int:
    """Execute the chapters, write the notebooks and the HTML book, print where it lies."""
    from richbook.course.book import make_book

    page = make_book(out=options.out, only=options.only, execute=options.execute)
    print(f"The book lies in {page}")
    return 0


#: The recorded sweeps, and the files that they are written to unless told otherwise.
SWEEP_FILES = {"digits": "sweep.nc", "alignment": "alignment-sweep.nc"}


def sweep(options: argparse.Namespace) -> int:
    """Train one of the book's recorded sweeps again and write it to a file."""
    from richbook.experiments import record_alignment_sweep, record_sweep

    record = {"digits": record_sweep, "alignment": record_alignment_sweep}[options.name]
    out = options.out or Path(SWEEP_FILES[options.name])
    record(out, progress=sys.stderr.isatty(), device=options.device)
    print(f"The sweep lies in {out}")
    return 0


def reproduce(options: argparse.Namespace) -> int:
    """Run an experiment of the richness paper again and compare it with the recorded result.

    A run that is stopped goes on when the same command is given again. Returns 1 if a number leaves
    its recorded band.
    """
    from richbook.experiments import listing

    if options.list or options.name is None:
        print(listing.recipes())
        return 0
    changes = {name: getattr(options, name) for name in ("seeds", "data")}
    try:
        result, out = listing.run(
            options.name,
            options.out,
            variant="quick" if options.quick else options.variant,
            device=options.device,
            workers=options.workers,
            restart=options.restart,
            progress=sys.stderr.isatty(),
            **{name: value for name, value in changes.items() if value is not None},
        )
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        return 130
    text, inside = listing.comparison(result)
    print(f"{text}\nThe result lies in {out}")
    return 0 if inside else 1


def _book_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the pages go: build/html")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", metavar="NN", help="execute only the chapters that start so")
    which.add_argument(
        "--no-execute",
        dest="execute",
        action="store_false",
        help="render the notebooks as they are",
    )


def _sweep_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", choices=list(SWEEP_FILES), default="digits",
        help="digits (D_LR; the default) or alignment (the six relations)",
    )  # fmt: skip
    files = " or ".join(SWEEP_FILES.values())
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"default: {files}")
    parser.add_argument("--device", help="cpu, cuda or mps; default: the fastest that is there")


def _reproduce_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="which one; none lists them")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: NAME.nc")
    parser.add_argument("--device", help="cpu, cuda or mps; default: the fastest that is there")
    parser.add_argument("--data", help="another data set, by its name in load_data")
    parser.add_argument("--seeds", type=int, metavar="N", help="how many seeds; default: 3")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="a version that takes seconds")
    which.add_argument("--variant", help="full, stand-in (small, for a CPU) or real (for a GPU)")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="networks at a time; default: one a CPU core"
    )
    parser.add_argument(
        "--restart", action="store_true", help="begin anew where a stopped run could go on"
    )


COMMANDS = {
    "doctor": Command("check the installation and say what is missing", doctor),
    "lab": Command("open the book in JupyterLab; takes its options", lab, passes_on=True),
    "book": Command("execute the chapters and build the HTML book", book, _book_arguments),
    "reproduce": Command(
        "run an experiment of the richness paper again", reproduce, _reproduce_arguments
    ),
    "sweep": Command("train one of the book's sweeps again", sweep, _sweep_arguments),
}


def parser() -> argparse.ArgumentParser:
    """The parser of all commands.

    Example:
        >>> parser().parse_args(["book", "--only", "01"]).only
        '01'
    """
    top = argparse.ArgumentParser(prog="richbook", description="The book and its tools.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        below = commands.add_parser(name, help=command.help, description=command.run.__doc__)
        if command.arguments:
            command.arguments(below)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; an error of ours is told without a traceback.

    Example:
        >>> main(["book", "--no-execute", "--out", "/"])  # doctest: +SKIP
        1
    """
    from richbook.measure.errors import RichbookError

    top = parser()
    options, rest = top.parse_known_args(arguments)
    options.rest = rest
    command = COMMANDS[options.command]
    if rest and not command.passes_on:
        top.error(f"{options.command} does not know {' '.join(rest)}")
    try:
        return command.run(options)
    except RichbookError as error:
        print(f"richbook {options.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
