"""A double of an srun with pyxis: options --container-*, then the real srun. See ``isolate``.

It is called as srun, and by the real srun as the task that enters the image.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

from isolate import command_line, read_image, without_slurm

REAL = "/usr/bin/srun"


def srun(words: list[str]) -> NoReturn:
    options: list[str] = []
    container: dict[str, str] = {}
    while words and words[0].startswith("-"):
        option = words.pop(0)
        name, _, value = option.removeprefix("--container-").partition("=")
        if option.startswith("--container-"):
            container[name] = value
        else:
            options.append(option)
    if not container:
        os.execv(REAL, [REAL, *options, *words])
    if not os.access(words[0], os.X_OK):  # srun looks for it outside
        print(f"srun: fatal: Can not execute {words[0]}", file=sys.stderr)
        sys.exit(2)
    task = [sys.executable, os.path.abspath(__file__), "--task", json.dumps(container), *words]
    os.execv(REAL, [REAL, *options, *task])


def enter(container: dict[str, str], words: list[str]) -> NoReturn:
    image = container["image"]
    try:
        inside = read_image(image)
    except OSError:
        print(f"slurmstepd: error: pyxis: failed to import {image}", file=sys.stderr)
        sys.exit(1)
    outside = without_slurm(os.environ)
    named = {name: outside[name] for name in container["env"].split(",") if name in outside}
    environ = {**outside, "PATH": "/usr/bin:/bin", **inside, **named}
    pairs = [text.split(":") for text in container["mounts"].split(",")]
    argv = command_line([(pair[0], pair[1]) for pair in pairs], "/", words)
    os.execve(argv[0], argv, environ)


if sys.argv[1:2] == ["--task"]:
    enter(json.loads(sys.argv[2]), sys.argv[3:])
srun(sys.argv[1:])
