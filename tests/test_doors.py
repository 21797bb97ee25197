"""Front doors: the names of a package are there, and what it has of modules is loaded late."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

DOORS = [
    "slurmmesh",
    "slurmmesh.actors",
    "slurmmesh.config",
    "slurmmesh.gpu",
    "slurmmesh.hosts",
    "slurmmesh.supervision",
]


@pytest.mark.parametrize("name", DOORS)
def test_all_that_a_package_names_is_there(name: str) -> None:
    package = importlib.import_module(name)
    assert set(package.__all__) <= set(dir(package))
    found = {each: getattr(package, each) for each in package.__all__}
    assert all(value is not None for value in found.values())
    # Not the modules of the same names: each is what it was declared to be.
    assert all(vars(package)[each] is value for each, value in found.items())
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_a_function_is_not_hidden_by_the_module_of_its_name() -> None:
    import slurmmesh as sm

    assert callable(sm.context)
    assert callable(importlib.import_module("slurmmesh.actors").context)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("slurmmesh.hosts.agent", ["asyncio", "cryptography", "slurmmesh.hosts.controller"]),
        ("slurmmesh.hosts.forkserver", ["asyncio", "cryptography", "slurmmesh.hosts.agent"]),
        ("slurmmesh.hosts.job", ["asyncio", "cryptography", "slurmmesh.hosts.controller"]),
    ],
)
def test_what_starts_often_does_not_load_what_it_does_not_use(
    module: str, heavy: list[str]
) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(heavy) & set(done.stdout.split())
