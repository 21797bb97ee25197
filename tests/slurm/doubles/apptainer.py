"""A double of ``apptainer exec``, see ``isolate``. Like apptainer it stays as the parent."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from typing import NoReturn

from isolate import command_line, read_image, without_slurm

PREFIX = "APPTAINERENV_"


def fatal(words: str) -> NoReturn:
    print(f"FATAL:   {words}", file=sys.stderr)
    sys.exit(255)


def main() -> NoReturn:
    words = sys.argv[1:]
    if not words or words.pop(0) != "exec":
        fatal("this double only knows exec")
    mounts = [bind(text) for text in filter(None, [os.environ.get("APPTAINER_BIND")])]
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--mount":
            mounts.append(mount(words.pop(0)))
        elif option not in ("--nv", "--rocm"):
            fatal(f"unknown flag: {option}")
    image = words.pop(0)
    try:
        inside = read_image(image)
    except OSError as error:
        fatal(f"could not open image {image}: {error.strerror}")
    outside = without_slurm(os.environ)
    if "APPTAINER_CLEANENV" in outside:
        outside = {}
    given = {n[len(PREFIX) :]: v for n, v in outside.items() if n.startswith(PREFIX)}
    environ = {
        **{n: v for n, v in outside.items() if not n.startswith(PREFIX)},
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LD_LIBRARY_PATH": "/.singularity.d/libs",
        **inside,
        **given,
        "APPTAINER_CONTAINER": image,
    }
    child = subprocess.Popen(command_line(mounts, os.getcwd(), words), env=environ)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(signum, lambda number, _frame: child.send_signal(number))
    code = child.wait()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def mount(text: str) -> tuple[str, str]:
    (fields,) = csv.reader([text])
    pairs = dict(field.partition("=")[::2] for field in fields)
    if pairs["type"] != "bind" or not os.path.exists(pairs["source"]):
        fatal(f"cannot mount {text}")
    return pairs["source"], pairs["destination"]


def bind(text: str) -> tuple[str, str]:
    source, _, target = text.partition(":")
    return source, target or source


main()
