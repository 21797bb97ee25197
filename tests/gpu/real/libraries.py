"""Real GPU libraries that tests load: where they come from, and how a program is run with them.

``fetch.py`` unpacks each source into a folder of its own; nothing of the system changes. A Debian
release comes with everything that it depends on, its C library too: Python runs on that release's
own loader, which needs neither root nor a chroot, so what tests exercise is this very build of
slurmmesh with the libraries of another release.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("SLURMMESH_TEST_LIBRARIES") or ROOT / ".cache" / "gpu-libraries")
RECORD = "fetched.json"


@dataclass(frozen=True)
class Source:
    """Packages to unpack, of a release of Debian or, without ``release``, of PyPI."""

    name: str
    packages: tuple[str, ...]
    release: str = ""
    section: str = "main"
    """Of Debian. From ``main`` comes all that the packages depend on too."""

    def __str__(self) -> str:
        where = f"Debian {self.release}/{self.section}" if self.release else "PyPI"
        return f"{self.name} ({', '.join(self.packages)} of {where})"


# A release moves on within itself: tests hold a library to its own header, not to numbers.
SOURCES = {
    source.name: source
    for source in (
        Source("debian-12", ("libamdhip64-dev",), "bookworm"),
        Source("debian-13", ("libamdhip64-dev", "librccl-dev"), "trixie"),
        Source("debian-unstable", ("libamdhip64-dev",), "unstable"),
        # NVIDIA builds its driver's library for any C library: this machine's will do.
        Source("debian-nvidia", ("libcuda1",), "trixie", "non-free"),
        Source(
            "pypi",
            (
                "nvidia-nccl-cu13==2.32.3",
                "nvidia-cuda-runtime==13.5.37",
                # headers that nccl.h includes
                "nvidia-cuda-crt==13.5.37",
                "nvidia-cuda-cccl==13.3.5.0.6",
            ),
        ),
    )
}


class NotFetched(Exception):
    """The libraries of a source are not there; the text says why and what to do."""


@dataclass(frozen=True, eq=False)
class Libraries:
    """What was unpacked from a source, or from several."""

    name: str
    roots: tuple[Path, ...]
    packages: dict[str, str]
    """Package -> version, those that were depended on too."""

    def __add__(self, other: Libraries) -> Libraries:
        packages = {**self.packages, **other.packages}
        return Libraries(f"{self.name}+{other.name}", (*self.roots, *other.roots), packages)

    def _matching(self, *patterns: str) -> tuple[Path, ...]:
        return tuple(
            path
            for root in self.roots
            for pattern in patterns
            for path in sorted(root.glob(pattern))
        )

    @functools.cached_property
    def loader(self) -> Path | None:
        """The dynamic loader that belongs to these libraries; None: this machine's will do."""
        found = self._matching("usr/lib/*/ld-linux-*.so.*", "lib/*/ld-linux-*.so.*")
        return found[0] if found else None

    @functools.cached_property
    def folders(self) -> tuple[Path, ...]:
        """Where the shared objects are."""
        debian = ("usr/lib/*-linux-gnu*", "lib/*-linux-gnu*", "usr/lib/*/nvidia/current")
        return self._matching(*debian, "nvidia/*/lib")

    @functools.cached_property
    def includes(self) -> tuple[Path, ...]:
        """Where the headers are."""
        return self._matching("usr/include", "nvidia/*/include")

    def file(self, pattern: str) -> Path:
        """The one shared object or header of that name, links followed. FileNotFoundError."""
        found = {
            path.resolve()
            for folder in (*self.folders, *self.includes)
            for path in folder.glob(pattern)
        }
        if len(found) != 1:
            raise FileNotFoundError(f"{pattern} in {self.name}: {sorted(found) or 'none'}")
        return found.pop()

    def python(self, *arguments: str) -> list[str]:
        """A command that runs this Python with these libraries, given ``environment()``.

        NVIDIA's libcuda, run by root, makes device files in /dev when there are none: it may not.
        """
        if self.loader is None:
            makes_devices = "libcuda1" in self.packages and os.geteuid() == 0
            prevent = ["setpriv", "--bounding-set", "-mknod"] if makes_devices else []
            return [*prevent, sys.executable, *arguments]
        path = ":".join(map(str, self.folders))
        run_on = [str(self.loader), "--argv0", sys.executable, "--library-path", path]
        return [*run_on, sys.executable, *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        """This process's, but for what chooses GPU libraries."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURMMESH_")}
        if self.loader is None:
            kept["LD_LIBRARY_PATH"] = ":".join(map(str, self.folders))
        return {**kept, "NCCL_SOCKET_IFNAME": "lo", **more}

    def run(self, *arguments: str, **environment: str) -> str:
        """What a run of Python with these libraries prints. AssertionError if it fails."""
        return output(self.python(*arguments), self.environment(**environment))


def output(command: list[str], environment: dict[str, str]) -> str:
    """What a command prints, run in the project's folder. AssertionError if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def find(name: str, cache: Path = CACHE) -> Libraries:
    """The unpacked libraries of a source. NotFetched."""
    source, folder = SOURCES[name], cache / name
    try:
        record = json.loads((folder / RECORD).read_text())
    except FileNotFoundError:
        reason = reason_file(source, cache)
        why = reason.read_text().strip() if reason.exists() else "they were never fetched"
        raise NotFetched(
            f"real libraries {source} are not there: {why}. `make gpu-libraries` tries again"
        ) from None
    if record["asked"] != list(source.packages):
        raise NotFetched(f"the libraries {name} are out of date: run `make gpu-libraries`")
    return Libraries(name, (folder,), record["packages"])


def reason_file(source: Source, cache: Path = CACHE) -> Path:
    """Why the last try to fetch a source failed."""
    return cache / f"{source.name}.reason"
