"""For the doubles of apptainer and pyxis: run a command cut off from Slurm, as in an image.

This is no container runtime. It has a mount namespace of its own in which /tmp is empty but for
what is mounted, which hides the configuration and the munge socket of a lab too, and Slurm's
commands cannot be run. An "image" is a JSON file with its environment.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

COMMANDS = ("sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo", "salloc")


def read_image(path: str) -> dict[str, str]:
    """The environment of an image. OSError if there is none."""
    with open(path) as file:
        return dict(json.load(file))


def command_line(
    mounts: Sequence[tuple[str, str]], folder: str, command: Sequence[str]
) -> list[str]:
    """Runs a command with only these mounts, each from outside to inside."""
    mounts = [*_own(), *mounts]
    lines = ["set -e", "inside=$PATH", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    lines.append("mount -t tmpfs none /mnt")
    for number, (source, _) in enumerate(mounts):
        lines += [f"mkdir /mnt/{number}", f"mount --rbind {shlex.quote(source)} /mnt/{number}"]
    lines.append("mount -t tmpfs none /tmp")
    for number, (_, target) in enumerate(mounts):
        lines.append(f"mkdir -p {shlex.quote(target)}")
        lines.append(f"mount --rbind /mnt/{number} {shlex.quote(target)}")
    lines.append("umount -R -l /mnt")
    found = filter(None, (shutil.which(name, path="/usr/bin:/bin") for name in COMMANDS))
    lines += [f"mount --bind /dev/null {path}" for path in found]
    lines += [f"cd {shlex.quote(folder)} 2>/dev/null || cd /", "PATH=$inside", 'exec "$@"']
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    return [
        *("/usr/bin/unshare", *user, "--mount", "--propagation", "private"),
        *("/bin/sh", "-c", "\n".join(lines), "sh", *command),
    ]


def _own() -> list[tuple[str, str]]:
    """What stands for the image's own files and would be hidden: Python, and this checkout."""
    folders = {sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[3])}
    return [(folder, folder) for folder in sorted(folders) if folder.startswith("/tmp/")]


def without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment that does not tell where the lab's Slurm is."""
    return {name: value for name, value in environ.items() if name != "SLURM_CONF"}
