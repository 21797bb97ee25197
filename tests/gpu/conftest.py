"""GPU tests without a GPU: programs that run in processes of their own, which find the emulator.

The libraries are loaded once in a process and stay; so nothing of a GPU is loaded in pytest's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import build

ROOT = Path(__file__).resolve().parent.parent.parent

# Runs one function, with arguments and answer in JSON. The answer has a descriptor of its own.
RUN = """
import importlib, json, os, sys
module, name, arguments, answer = sys.argv[1:]
called = getattr(importlib.import_module(module), name)
text = json.dumps(called(*json.loads(arguments)))
with os.fdopen(int(answer), "w") as file:
    file.write(text)
"""

Program = Callable[..., Any] | str


class ProgramFailed(AssertionError):
    """A program ended with another exit code than 0. The text is what it printed."""


@dataclass(frozen=True)
class Gpu:
    """Where a program finds its GPU libraries.

    Attributes:
        name: for a person: ``rocm-7.1``.
        platform: ``rocm`` or ``cuda``.
        folder: of the emulator's libraries; None: the real ones of this machine.
        settings: of the emulator (tests/emulator/build.py), in lower case.
    """

    name: str
    platform: str
    folder: Path | None
    settings: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def emulated(self) -> bool:
        return self.folder is not None

    def environment(self, **settings: str | int) -> dict[str, str]:
        made = {k: v for k, v in os.environ.items() if not k.endswith("_VISIBLE_DEVICES")}
        if self.folder is not None:
            made = build.environment(self.folder, made, **{**self.settings, **settings})
        made["SLURMMESH_GPU_PLATFORM"] = self.platform
        return made

    def having(self, **settings: str | int) -> Gpu:
        """The same with other settings of the emulator."""
        return replace(self, settings={**self.settings, **settings})

    def run(self, program: Program, *arguments: Any, **settings: str | int) -> Any:
        """Run it in a process of its own.

        A program that is a function is one of a module that can be imported from the root of the
        repository; arguments and answer are JSON. One that is text is Python, its arguments are
        strings, the answer is what it printed. Raises ``ProgramFailed``.
        """
        return self.finish(self.start(program, *arguments, **settings))

    def start(self, program: Program, *arguments: Any, **settings: str | int) -> Started:
        """As ``run``, without waiting for it. ``finish`` must follow."""
        environment = self.environment(**settings)
        if isinstance(program, str):
            return Started(_python(environment, (), "-c", program, *map(str, arguments)))
        reading, writing = os.pipe()
        try:
            place = (program.__module__, program.__name__)
            told = (*place, json.dumps(arguments), str(writing))
            return Started(_python(environment, (writing,), "-c", RUN, *told), reading)
        finally:
            os.close(writing)

    @staticmethod
    def finish(started: Started, timeout: float = 120) -> Any:
        process = started.process
        try:
            printed, said = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, said = process.communicate()
            said += "\n(killed after its time was over)"
        if started.answer is None:
            text = ""
        else:
            with os.fdopen(started.answer) as file:
                text = file.read()
        if process.returncode:
            raise ProgramFailed(f"exit code {process.returncode}\n{printed}{said}")
        return printed if started.answer is None else json.loads(text)


@dataclass(frozen=True)
class Started:
    """A program that runs. ``answer``: where a function's answer comes."""

    process: subprocess.Popen[str]
    answer: int | None = None


def _python(
    environment: dict[str, str], fds: tuple[int, ...], *arguments: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# name -> platform, flavour of the build, settings
EMULATED: dict[str, tuple[str, build.Flavour, dict[str, str | int]]] = {
    "rocm-7.1": ("rocm", "plain", {}),  # descriptors are imported by value
    "rocm-7.0": ("rocm", "plain", {"hip_version": "7.0"}),  # by pointer
    "rocm-6.4": ("rocm", "old", {}),  # by pointer; dma-bufs by HSA
    "cuda": ("cuda", "plain", {}),
}


@pytest.fixture(scope="session")
def emulator() -> Callable[..., Gpu]:
    """``emulator("rocm-7.1", flavour="asan", devices=4)``: an emulated GPU, built once.

    Without a compiler the test is skipped.
    """

    def make(
        name: str = "rocm-7.1", *, flavour: build.Flavour | None = None, **settings: str | int
    ) -> Gpu:
        platform, usual, own = EMULATED[name]
        try:
            folder = build.emulator(flavour or usual)
        except build.BuildFailed as error:
            if "needs a C compiler" in str(error):
                pytest.skip(str(error))
            raise
        return Gpu(name, platform, folder, {**own, **settings})

    return make


@pytest.fixture(scope="session")
def in_emulator(emulator: Callable[..., Gpu]) -> Callable[..., Any]:
    """``in_emulator(program, *arguments, devices=4)``: what it answers on emulated ROCm 7.1."""

    def run(program: Program, *arguments: Any, **settings: str | int) -> Any:
        return emulator().run(program, *arguments, **settings)

    return run


FIND = """
from slurmmesh.gpu import devices
print(devices()[0].name)
"""


@pytest.fixture(scope="session")
def real_cuda() -> Gpu:
    """The NVIDIA GPU of this machine; skips where there is none, and says why."""
    gpu = Gpu("real cuda", "cuda", None)
    try:
        gpu.run(FIND)
    except ProgramFailed as error:
        pytest.skip(f"no NVIDIA GPU: {str(error).strip().splitlines()[-1]}")
    return gpu


@pytest.fixture(params=[*EMULATED, pytest.param("real", marks=pytest.mark.requires_cuda)])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    """Each emulated GPU in turn, and the real one where there is one (marked requires_cuda)."""
    if request.param == "real":
        return request.getfixturevalue("real_cuda")
    return request.getfixturevalue("emulator")(request.param)
