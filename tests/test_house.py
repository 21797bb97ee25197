"""The house stays in order: import rule, import cost, packaging, lint, types, what is committed."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmmesh.lab.packages import install_line
from slurmmesh.lab.spec import LabSpec

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "slurmmesh"

# Who may import whom (docs/architecture.md), before what those may import is added.
MAY_IMPORT: dict[str, set[str]] = {
    "_version": set(),
    "_doors": set(),
    "errors": set(),
    "sbatch_templates": set(),
    "linux": set(),
    "config": {"errors"},
    "files": set(),
    "folders": {"files"},
    "record": {"files"},
    "telemetry": {"errors"},
    "shape": {"errors"},
    "wire": {"errors"},
    "supervision": {"errors", "shape"},
    "slurm": {"errors", "linux", "config", "sbatch_templates"},
    "actors": {"wire", "shape", "supervision"},
    "hosts": {"actors", "slurm"},
    "recovery": {"actors", "hosts", "rdma"},
    "faults": {"actors", "hosts", "recovery"},
    "gpu": {"errors"},
    "_cffi": {"errors"},
    "rdma": {"actors", "gpu"},
    "mpi": {"actors", "hosts"},
    "tensors": {"actors"},
}
CODE = ("slurmmesh", "sbatch_templates", "benchmarks", "examples", "tests")
FRONT_DOORS = {"submit", "jobs", "lab", "doctor", "cli", "__init__", "__main__"}
# The writing end of the event log, the names of job folders, the record in them, how files are
# written: open to all.
OPEN_TO_ALL = {
    "slurmmesh._version",
    "slurmmesh._doors",
    "slurmmesh.files",
    "slurmmesh.folders",
    "slurmmesh.record",
    "slurmmesh.telemetry",
    "slurmmesh.telemetry.events",
}

HEAVY = ("torch", "torchft", "numpy", "matplotlib", "rich", "submitit", "cryptography")
IMPORT_BUDGET_S = 0.1
LONGEST_FILE = 500
# Files that are longer and still one concern, each with its reason.
LONG_FILES: dict[str, str] = {}


def committed_files() -> list[Path]:
    """What git tracks or would, as it is in the working tree."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = (ROOT / name for name in listing.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """``.../slurmmesh/wire/__init__.py`` -> ``slurmmesh.wire``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# ------------------------------------------------------------------ the import rule


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Modules that a module imports from this project, at any depth of its code.

    ``package`` is the package it is in, for relative imports. Of ``from a import b`` it yields
    ``a.b`` if that is a module, else ``a``.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if is_module(full) else base


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.replace("slurmmesh.sbatch_templates", "sbatch_templates").split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def room_of(module: str) -> str:
    """``slurmmesh.wire.frames`` -> ``wire``; the top of the package is ``__init__``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def allowed_rooms(room: str) -> set[str]:
    """The rooms that a room may import: itself, those of its row, and what those may import."""
    found: set[str] = set()
    waiting = [room]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting.extend(MAY_IMPORT[current])
    return found


def forbidden_imports(module: str, tree: ast.AST, is_package: bool = False) -> list[str]:
    """The imports of a module that run against the table."""
    room = room_of(module)
    if room in FRONT_DOORS:
        return []
    package = module if is_package else module.rpartition(".")[0]
    return sorted(
        target
        for target in set(imported(tree, package))
        if target.split(".")[0] == "slurmmesh"
        and target not in OPEN_TO_ALL
        and room_of(target) not in allowed_rooms(room)
    )


@pytest.mark.parametrize(
    ("module", "line", "forbidden"),
    [
        ("slurmmesh.wire.frames", "from slurmmesh.errors import FrameError", []),
        ("slurmmesh.wire.frames", "from slurmmesh import errors", []),
        ("slurmmesh.wire.frames", "from ..errors import FrameError", []),
        ("slurmmesh.wire.frames", "from slurmmesh.telemetry import emit", []),
        ("slurmmesh.wire.frames", "from slurmmesh.shape import Extent", ["slurmmesh.shape"]),
        ("slurmmesh.wire.frames", "from ..shape import Extent", ["slurmmesh.shape"]),
        ("slurmmesh.wire.frames", "def f():\n import slurmmesh.shape", ["slurmmesh.shape"]),
        ("slurmmesh.wire.frames", "import slurmmesh as sm", ["slurmmesh"]),
        ("slurmmesh.hosts.agent", "from slurmmesh.config import Settings", []),
        ("slurmmesh.hosts.agent", "import slurmmesh.recovery", ["slurmmesh.recovery"]),
        ("slurmmesh.recovery.ddp", "from slurmmesh.hosts import x, y", []),
        ("slurmmesh.slurm.script", "from slurmmesh import sbatch_templates", []),
        ("slurmmesh.slurm.script", "from slurmmesh.actors import Actor", ["slurmmesh.actors"]),
        ("slurmmesh.shape.extent", "import slurmmesh.cli", ["slurmmesh.cli"]),
        ("slurmmesh.cli", "from slurmmesh.recovery import x", []),
    ],
)
def test_the_rule_reads_imports(module: str, line: str, forbidden: list[str]) -> None:
    assert forbidden_imports(module, ast.parse(line)) == forbidden


def test_imports_run_down_the_house() -> None:
    rooms = {room_of(name_of(path)) for path in modules()}
    assert rooms - MAY_IMPORT.keys() - FRONT_DOORS == set(), "rooms that the table does not have"
    against = [
        f"{path.relative_to(ROOT)} imports {target}"
        for path in modules()
        for target in forbidden_imports(
            name_of(path), ast.parse(path.read_text(), str(path)), path.name == "__init__.py"
        )
    ]
    assert not against, "\n".join(against)


def test_the_architecture_page_tells_this_rule() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    told = {}
    for rooms, may_import in re.findall(r"^\| (`[^|]*`) \|[^|]*\| ([^|]*) \|$", page, re.MULTILINE):
        for room in re.findall(r"`(\w+)`", rooms):
            told[room] = set(re.findall(r"\w+", may_import))
    doors = {door: {"everything"} for door in FRONT_DOORS - {"__init__"}}
    assert told == {
        **{k: v for k, v in MAY_IMPORT.items() if k not in ("_version", "_doors")},
        **doors,
    }


def test_pages_name_files_that_are_there() -> None:
    missing = []
    pages = [path for path in committed_files() if path.suffix == ".md"]
    for page in pages:
        text = page.read_text()
        linked = [page.parent / link for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text)]
        missing += [str(path) for path in linked if not path.exists()]
        for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|j2|sh|md))`", text):
            if not any((folder / name).exists() for folder in (ROOT, PACKAGE, page.parent)):
                missing.append(f"{page}: {name}")
    assert not missing, "\n".join(missing)


# ------------------------------------------------------------------ what an import costs

MEASURE = """
import sys, time
before = time.perf_counter()
import slurmmesh
print(time.perf_counter() - before)
print(",".join(sys.modules))
"""


def measure_import() -> tuple[float, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, names = done.stdout.split()
    return float(seconds), set(names.split(","))


def test_import_is_light() -> None:
    loaded = measure_import()[1]
    assert {name for name in loaded if name.partition(".")[0] in HEAVY} == set()


def test_import_is_quick() -> None:
    # The best of several: what the import costs, not what else this machine is doing.
    assert min(measure_import()[0] for _ in range(7)) < IMPORT_BUDGET_S


# ------------------------------------------------------------------ packaging


def metadata() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_packages_listed_are_the_packages_there() -> None:
    listed = metadata()["options"]["packages"].split()
    there = {name_of(path) for path in PACKAGE.rglob("__init__.py")}
    assert sorted(listed) == sorted({*there, "slurmmesh.sbatch_templates"})


def test_torch_is_pinned_for_us_and_open_for_users() -> None:
    pins = (ROOT / "constraints.txt").read_text().split()
    assert {"torch==2.13.0", "torchft==0.2.0"} <= set(pins)
    assert "torch>=" in metadata()["options.extras_require"]["train"]
    assert "torch" not in metadata()["options"]["install_requires"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without network from what is committed."""
    source = tmp_path_factory.mktemp("source")
    for path in committed_files():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--no-index", "--wheel-dir", "wheels", "."),
        ],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (source / "wheels").glob("slurmmesh-*.whl")
    return found


@pytest.mark.slow
def test_wheel_holds_the_package_and_its_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {str(path.relative_to(ROOT)) for path in modules()} <= names
    assert "slurmmesh/py.typed" in names
    templates = {path.name for path in (ROOT / "sbatch_templates").glob("*.j2")}
    assert templates
    assert {f"slurmmesh/sbatch_templates/{name}" for name in templates} <= names
    data = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.j2")}
    assert data <= names
    assert not [name for name in names if name.startswith(("tests/", "examples/", "benchmarks/"))]


def test_the_packages_installed_for_tests_are_those_a_lab_needs() -> None:
    script = (ROOT / ".ci" / "debian-packages.sh").read_text()
    (listed,) = re.findall(r"^packages=\(([^)]*)\)", script, re.MULTILINE)
    needed = install_line(LabSpec(netns=True, accounting=True)).split()
    assert sorted(listed.split()) == sorted(needed[needed.index("slurm-wlm") :])


# A program of a user: actors on the hosts of its job, without anything for training.
PROGRAM = """
import slurmmesh as sm

class Adder(sm.Actor):
    def __init__(self, base):
        self.base = base

    @sm.endpoint
    def add(self, x):
        return self.base + x

    @sm.endpoint
    def has_torch(self):
        try:
            import torch
        except ImportError:
            return False
        return True

if __name__ == "__main__":
    procs = HOSTS.spawn_procs({"gpus": 2}, name="adders")
    adders = procs.spawn("adder", Adder, 40)
    print("answers", *adders.add.call(2).get().values())
    print("torch", any(adders.has_torch.call().get().values()))
    print("from", sm.__file__)
    procs.stop()
"""


@pytest.fixture
def without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder ahead of all installed packages in which what training needs is not installed."""
    hidden = tmp_path / "hidden"
    for name in ("torch", "torchft", "numpy", "matplotlib"):
        (hidden / name).mkdir(parents=True)
        (hidden / name / "__init__.py").write_text(
            f"raise ModuleNotFoundError(\"No module named '{name}'\", name={name!r})"
        )
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    return hidden


def run_python(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("without_torch")
def test_actors_work_without_torch(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("HOSTS", "sm.this_host()"))
    printed = run_python(str(script), cwd=tmp_path)
    assert "answers 42 42" in printed
    assert "torch False" in printed


@pytest.mark.slow
def test_the_installed_wheel_runs_a_job(
    wheel: Path, without_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    run_python(
        *("-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
        *("--target", str(site), str(wheel)),
        cwd=tmp_path,
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}:{without_torch}")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("HOSTS", "sm.this_job().hosts"))
    printed = run_python(
        *("-m", "slurmmesh.submit", "--cluster", "local", "--nodes", "2", str(script)),
        cwd=tmp_path,
    )
    (log,) = (tmp_path / "slurmmesh-jobs").glob("*/controller.log")
    assert "answers 42 42 42 42" in log.read_text(), printed
    assert f"from {site}" in log.read_text()


# ------------------------------------------------------------------ docs name what there is


def test_the_tests_that_docs_name_are_there() -> None:
    text = (ROOT / "docs" / "troubles.md").read_text()
    named = set(re.findall(r"`([\w/]+\.py)::(test_\w+)`(\*?)", text))
    assert len(named) > 40
    for path, test, star in named:
        code = (ROOT / "tests" / path).read_text()
        assert f"\ndef {test}(" in code, f"{path}::{test}"
        on_slurm = "lab" in code or "slurm: Any" in code
        assert on_slurm or not star, f"{path}::{test} uses no lab"


# ------------------------------------------------------------------ lint and types


def run_tool(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing() -> None:
    run_tool("ruff", "check", ".")


def test_code_is_formatted() -> None:
    run_tool("ruff", "format", "--check", *CODE)


@pytest.mark.slow
def test_types_hold() -> None:
    run_tool("mypy")


# ------------------------------------------------------------------ what is committed


def test_every_public_module_says_what_it_is() -> None:
    public = [p for p in modules() if not p.stem.startswith("_") or p.name == "__init__.py"]
    silent = [
        str(path.relative_to(ROOT))
        for path in public
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent, "\n".join(silent)


# Put together from pieces, so that this file does not name them itself.
NAMED_NOWHERE = {
    "a path of one machine": r"(?<![\w.~])/(?:" + "root|work|home/[a-z]" + r")/",
    "the workplace": r"\.\./(?:\." + "library|" + r"shared)\b",
    "a registry's host": "|".join(
        re.escape(name + end)
        for name, end in [
            ("pypi", ".org"),
            ("pythonhosted", ".org"),
            ("npmjs", ".org"),
            ("deb.debian", ".org"),
            ("archive.ubuntu", ".com"),
            ("download.pytorch", ".org"),
        ]
    ),
}


@pytest.mark.parametrize("what", NAMED_NOWHERE)
def test_no_committed_file_names(what: str) -> None:
    pattern = re.compile(NAMED_NOWHERE[what])
    found = []
    for path in committed_files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


def test_files_are_short() -> None:
    code = [path for path in committed_files() if path.suffix in {".py", ".c", ".h", ".sh"}]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in code}
    long = {name for name, lines in lengths.items() if lines > LONGEST_FILE}
    assert long == LONG_FILES.keys()


def test_ci_runs_what_the_readme_says() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()
