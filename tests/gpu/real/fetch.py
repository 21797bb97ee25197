"""Fetch the real GPU libraries of ``libraries.py``: ``python -m tests.gpu.real.fetch [PIP ARGS]``.

Needs no root. apt runs on a configuration, package lists and a status of its own, which says that
nothing is installed, so that it gathers a release's packages with all they depend on; the mirror is
the one of this machine's own sources. What is there already is left alone. What cannot be had is
said, kept beside the cache as the reason for which tests skip, and does not fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.real.libraries import (
    CACHE,
    RECORD,
    SOURCES,
    Libraries,
    NotFetched,
    Source,
    find,
    reason_file,
)

LIMIT_S = 900
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Nothing of the system: no hook, list, preference or installed package.
APT_CONF = """
Dir::State "{folder}"; Dir::State::status "{folder}/status"; Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}"; Dir::Cache::archives "{folder}/archives"; Dir::Log "{folder}";
Dir::Etc "{folder}"; Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null"; Dir::Etc::parts "/dev/null"; Dir::Etc::main "/dev/null";
Dir::Etc::preferences "/dev/null"; Dir::Etc::preferencesparts "/dev/null";
APT::Install-Recommends "false"; APT::Sandbox::User ""; Debug::NoLocking "true";
Acquire::Languages "none"; Acquire::Retries "1"; Acquire::http::Timeout "20";
"""


class Failed(Exception):
    """A source cannot be had; the text says why."""


class Unreachable(Failed):
    """Nor can another release, for the same reason: the mirror does not answer."""


def run(*command: str, name: str = "", folder: Path | None = None, **environment: str) -> str:
    """What a command prints. Failed, with the first error that it told; ``name``: for a person."""
    name = name or " ".join(command[:2])
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} did not end within {LIMIT_S} s") from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
        errors = [line for line in lines if line.startswith(("E:", "ERROR:"))] or lines[-1:]
        raise Failed(f"{name} failed: {errors[0]}")
    return done.stdout


# ------------------------------------------------------------------ Debian


def mirror() -> str:
    """The Debian mirror that this machine's own sources name. Failed if they name none."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Failed(f"there is no {tool} here to unpack Debian packages with")
    if not KEYRING.exists():
        raise Failed(f"{KEYRING} is not there, which the packages are signed with")
    listed = run("apt-get", "-o", "Debug::NoLocking=1", "update", "--print-uris")
    return mirror_in(listed)


def mirror_in(listed: str) -> str:
    """The mirror in what apt prints of its sources: the first that has a Debian release."""
    releases = "bookworm|trixie|forky|duke|sid|oldstable|stable|testing|unstable"
    found = re.search(rf"^'(\S+)/dists/(?:{releases})/(?:In)?Release'", listed, re.MULTILINE)
    if found is None:
        raise Failed("the apt sources of this machine name no Debian mirror")
    return found.group(1)


def fetch_debian(source: Source, folder: Path) -> dict[str, str]:
    """Unpack a release's packages, and all they depend on, into a folder; their versions."""
    site = mirror()
    apt = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()
    entry = f"deb [signed-by={KEYRING}] {site} {source.release} {source.section}\n"
    (apt / "sources.list").write_text(entry)
    how = [
        line
        for line in run("apt-config", "dump", "Acquire").splitlines()
        if "::IndexTargets" not in line
    ]
    (apt / "apt.conf").write_text("\n".join(how) + APT_CONF.format(folder=apt))
    config = str(apt / "apt.conf")
    try:
        run("apt-get", "update", "--error-on=any", APT_CONFIG=config)
    except Failed as failure:
        raise Unreachable(str(failure)) from failure
    archives = apt / "archives"
    if source.section == "main":
        run("apt-get", "install", "-y", "--download-only", *source.packages, APT_CONFIG=config)
    else:
        run("apt-get", "download", *source.packages, folder=archives, APT_CONFIG=config)
    versions = {}
    for package in sorted(archives.glob("*.deb")):
        run("dpkg-deb", "--extract", str(package), str(folder))
        name, version, _ = urllib.parse.unquote(package.stem).split("_")
        versions[name] = version
    shutil.rmtree(apt)
    return versions


# ------------------------------------------------------------------ PyPI


def fetch_pypi(source: Source, folder: Path, pip_args: Sequence[str]) -> dict[str, str]:
    """Unpack wheels into a folder, without what they depend on; their versions.

    They are not installed: torch must stay the one that the tests run with.
    """
    wheels = folder / "wheels"
    run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--dest", str(wheels), *pip_args, *source.packages),
        name="pip download",
    )
    versions = {}
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        name, version = wheel.name.split("-")[:2]
        versions[name] = version
    shutil.rmtree(wheels)
    return versions


# ------------------------------------------------------------------ all of them


def fetch(source: Source, pip_args: Sequence[str] = (), cache: Path = CACHE) -> Libraries:
    """Put a source's libraries into the cache: all of them, or nothing. Failed."""
    folder, new = cache / source.name, cache / f"{source.name}.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    began = time.monotonic()
    try:
        if source.release:
            versions = fetch_debian(source, new)
        else:
            versions = fetch_pypi(source, new, pip_args)
        seconds = round(time.monotonic() - began)
        record = {"asked": list(source.packages), "packages": versions, "seconds": seconds}
        (new / RECORD).write_text(json.dumps(record, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise Failed(str(error)) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return find(source.name, cache)


def fetch_missing(
    sources: Sequence[Source], pip_args: Sequence[str] = (), cache: Path = CACHE
) -> None:
    """Fetch what is not there, and say how each source stands."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unreachable: Unreachable | None = None
        for source in sources:
            try:
                libraries = find(source.name, cache)
            except NotFetched:
                print(f"fetching real GPU libraries for tests: {source}", flush=True)
                reason = reason_file(source, cache)
                try:
                    if unreachable is not None and source.release:
                        raise unreachable
                    libraries = fetch(source, pip_args, cache)
                    reason.unlink(missing_ok=True)
                except Failed as failure:
                    if isinstance(failure, Unreachable):
                        unreachable = failure  # to wait for each in turn would take minutes
                    reason.write_text(f"{failure}\n")
                    print(f"real GPU libraries {source}: {failure}; tests of them skip")
                    continue
            interesting = re.compile("hip64|rccl|nccl|cuda.runtime|libcuda|^libc6$")
            versions = (f"{k} {v}" for k, v in libraries.packages.items() if interesting.search(k))
            print(f"real GPU libraries {source.name}: {', '.join(versions)}")


if __name__ == "__main__":
    fetch_missing(list(SOURCES.values()), sys.argv[1:])
