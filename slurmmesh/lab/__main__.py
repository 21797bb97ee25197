"""``python -m slurmmesh.lab``: a real Slurm on this machine, from the command line."""

from __future__ import annotations

import sys

# "python -m" has put the working folder first, where a user's json.py would take Python's place.
if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.append(sys.path.pop(0))

try:
    import argparse
    import os
    import shlex
    import signal
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import NoReturn

    from slurmmesh.errors import EXIT_INTERRUPTED, EXIT_OK, SlurmmeshError, UsageError
    from slurmmesh.lab import command, control
    from slurmmesh.lab.core import Lab
    from slurmmesh.lab.environment import MARK
except KeyboardInterrupt:  # later on, a Ctrl-C is for ``main``
    sys.exit(130)

_EPILOG = """\
examples:
  python -m slurmmesh.lab exec --nodes 4 -- srun -N4 hostname
  eval "$(python -m slurmmesh.lab up --nodes 4)"; sinfo; python -m slurmmesh.lab down
"""


class _Signalled(BaseException):
    """A signal that ends the program, as an exception, so that the lab is ended first."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    before = {s: signal.getsignal(s) for s in command.PASSED_ON}
    try:
        for signum, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(signum, _signalled)
        return _run(list(sys.argv[1:] if argv is None else argv))
    except SlurmmeshError as error:
        print(f"slurmmesh.lab: {error}", file=sys.stderr)
        return error.exit_code
    except _Signalled as error:
        return 128 + error.signum
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _run(words: list[str]) -> int:
    arguments, cmd = _split(words)
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.verb == "exec" and not cmd:
        parser.error("exec needs a command: exec --nodes 4 -- CMD [ARG...]")
    if options.verb != "exec" and cmd is not None:
        parser.error(f"{options.verb} takes no command")
    if options.verb == "exec":
        return _exec(options, cmd or [])
    return _up(options) if options.verb == "up" else _down(options)


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Arguments of the lab, and those behind ``--`` (None without one)."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slurmmesh.lab",
        description="A real Slurm of N nodes on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="up|down|exec")
    up = verbs.add_parser("up", help="start a lab and leave it running")
    run = verbs.add_parser("exec", help="run a command under a lab that ends with it")
    run.usage = "python -m slurmmesh.lab exec [options] -- CMD [ARG...]"
    for each in (up, run):
        each.add_argument("--nodes", type=int, default=4, help="number of nodes (default 4)")
        each.add_argument("--netns", action="store_true", help="a network of its own per node")
        each.add_argument("--accounting", action="store_true", help="slurmdbd, so sacct answers")
        each.add_argument("--directory", help="where configuration and logs lie, and stay")
    down = verbs.add_parser("down", help="end a lab that was started with up")
    down.add_argument("directory", nargs="?", help="its folder, if more than one is running")
    return parser


def _lab(options: argparse.Namespace) -> Lab:
    return Lab(
        options.nodes,
        netns=options.netns,
        accounting=options.accounting,
        directory=options.directory,
    )


def _up(options: argparse.Namespace) -> int:
    lab = _lab(options)
    with lab:
        print(f"export SLURM_CONF={shlex.quote(str(lab.conf))}")
        print(f"# {options.nodes} idle nodes; files and logs in {lab.root}")
        print(f"# end it with: python -m slurmmesh.lab down {shlex.quote(str(lab.root))}")
        sys.stdout.flush()
        lab.detach()
    return EXIT_OK


def _down(options: argparse.Namespace) -> int:
    lab = _find_lab(options.directory, os.environ)
    if lab is None:
        others = "".join(f"\n  {each}" for each in control.running_roots())
        print(
            "slurmmesh.lab: no lab is running"
            if not others
            else "slurmmesh.lab: no lab that was started with up is running. These belong to "
            f"programs that end them; down FOLDER ends one all the same:{others}",
            file=sys.stderr,
        )
        return EXIT_OK
    root = lab.root
    lab.stop()
    print(f"slurmmesh.lab: ended the lab in {root}", file=sys.stderr)
    return EXIT_OK


def _find_lab(root: str | None, environ: Mapping[str, str]) -> Lab | None:
    """The lab a command is about: the one named, the one SLURM_CONF points to, or the only one.

    Only labs that were left running count for the last: another one ends with its program.

    Returns:
        None if none is named and none was left running.

    Raises:
        LabError: the one named is not running.
        UsageError: several are running.
    """
    if root is not None:
        return Lab.attach(root)
    roots = control.running_roots()
    conf = environ.get("SLURM_CONF")
    if conf and Path(conf).parent.parent in roots:
        return Lab.attach(Path(conf).parent.parent)
    roots = [each for each in roots if Lab.was_left_running(each)]
    if len(roots) > 1:
        listed = "".join(f"\n  {each}" for each in roots)
        raise UsageError(f"several labs are running; name the folder of one:{listed}")
    return Lab.attach(roots[0]) if roots else None


def _exec(options: argparse.Namespace, cmd: list[str]) -> int:
    program = command.find_program(cmd[0], os.environ)
    if program is None:
        print(f"slurmmesh.lab: {cmd[0]}: command not found", file=sys.stderr)
        return command.NOT_FOUND
    with _lab(options) as lab:
        # Marked, so that what the command leaves running ends with the lab.
        return command.run_command(program, cmd, lab.env(**{MARK: str(lab.root)}))


def _signalled(signum: int, frame: object) -> NoReturn:
    raise _Signalled(signum)


if __name__ == "__main__":
    sys.exit(main())
