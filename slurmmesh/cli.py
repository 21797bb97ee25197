"""The console command ``slurmmesh``: hands on to the front door that is named."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from slurmmesh._version import __version__
from slurmmesh.errors import EXIT_OK, EXIT_USAGE

_USAGE = """\
usage: slurmmesh COMMAND ...

commands (each has its own --help):
  submit     run a program on a Slurm cluster, or on this machine
  list       your jobs: running, waiting, ended
  status     how a job is: nodes, meshes, training, failures
  logs       what a job writes, and has written
  cancel     end jobs
  lab        a real Slurm of several nodes on this machine
  report     a report of a job from its folder
  config     each setting, its value, and where that comes from
  templates  the templates of batch scripts: list them, show one, check yours
  doctor     what this node has for a job, what it lacks, and what to do

slurmmesh --version prints the version.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` if None); returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    match words[:1]:
        case ["submit"]:
            from slurmmesh.submit.command import main as submit

            return submit(words[1:])
        case ["list"]:
            from slurmmesh.jobs.list_command import main as list_jobs

            return list_jobs(words[1:])
        case ["status"]:
            from slurmmesh.jobs.status_command import main as status

            return status(words[1:])
        case ["logs"]:
            from slurmmesh.jobs.logs_command import main as logs

            return logs(words[1:])
        case ["cancel"]:
            from slurmmesh.jobs.cancel_command import main as cancel

            return cancel(words[1:])
        case ["lab"]:
            from slurmmesh.lab.__main__ import main as lab

            return lab(words[1:])
        case ["report"]:
            from slurmmesh.telemetry.report import main as report

            return report(words[1:])
        case ["config"]:
            from slurmmesh.submit.config_command import main as config

            return config(words[1:])
        case ["templates"]:
            from slurmmesh.submit.templates_command import main as templates

            return templates(words[1:])
        case ["doctor"]:
            from slurmmesh.doctor.command import main as doctor

            return doctor(words[1:])
        case ["--version"]:
            print(f"slurmmesh {__version__}")
            return EXIT_OK
        case ["--help"] | ["-h"]:
            print(_USAGE, end="")
            return EXIT_OK
    what = f"there is no command {words[0]!r}" if words else "which command?"
    print(f"slurmmesh: error: {what}\n\n{_USAGE}", end="", file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
