"""``slurmmesh doctor`` as a user runs it: with an emulated GPU, a real library, a bad one, none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.doctor import python
from slurmmesh.errors import EXIT_OK, EXIT_SETUP_FAILED, EXIT_USAGE
from slurmmesh.hosts.masks import ROCR, VARIABLES
from slurmmesh.lab import Lab
from tests.emulator import build
from tests.gpu.real.libraries import NotFetched, find

ROOT = Path(__file__).parents[2]

GLIBC = ("libc.", "libm.", "libmvec", "libdl.", "librt.", "libpthread", "libresolv", "libutil.")

# A GPU library that comes to grief where it is told to.
BROKEN = """
#include <stdlib.h>
#include <unistd.h>

static void grief(void)
{
    static const char said[] = "HSA_STATUS_ERROR: all is lost\\n";
    (void)!write(2, said, sizeof said - 1);
    GRIEF;
}
#ifdef AT_LOAD
__attribute__((constructor)) static void begin(void) { grief(); }
#endif
int hipRuntimeGetVersion(int *version) { *version = 70100000; return 0; }
int hipGetDeviceCount(int *count) { grief(); *count = 1; return 0; }
"""


def clean() -> dict[str, str]:
    """An environment in which nothing is chosen, and Slurm is not installed."""
    chosen = (*VARIABLES, "LD_LIBRARY_PATH")
    kept = {name: value for name, value in os.environ.items() if name not in chosen}
    kept = {name: value for name, value in kept.items() if not name.startswith("SLURM")}
    return {**kept, "PATH": "/nowhere"}


@pytest.fixture
def doctor(tmp_path: Path) -> Any:
    """``doctor("--json", NAME="value")``: exit code and output."""

    def run(*arguments: str, **environ: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "slurmmesh", "doctor", *arguments],
            env={**clean(), "PYTHONPATH": str(ROOT), **environ},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    return run


def by_name(output: str) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(output)["checks"]}


@pytest.fixture(autouse=True)
def _no_gpu_here() -> None:
    if os.path.exists("/dev/kfd") or os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU; these tests say what is told without one")


@pytest.fixture
def broken(tmp_path: Path) -> Any:
    """``broken("abort()", at_load=False)``: a folder with such a GPU library."""

    def make(grief: str, at_load: bool = False) -> str:
        (tmp_path / "broken.c").write_text(BROKEN)
        flags = [f"-DGRIEF={grief}", *(["-DAT_LOAD"] if at_load else [])]
        output = tmp_path / "libamdhip64.so.7"
        command = ["cc", "-shared", "-fPIC", *flags, "-o", str(output), str(tmp_path / "broken.c")]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            pytest.skip("no C compiler")
        return str(tmp_path)

    return make


def test_without_any_library(doctor: Any) -> None:
    code, output = doctor("--json")
    checks = by_name(output)
    assert code == EXIT_OK
    assert checks["libraries"]["state"] == "note"
    assert "libamdhip64.so.7" in checks["libraries"]["text"]
    assert checks["slurm"]["state"] == "note"
    assert checks["job folders"]["state"] == "ok"
    assert not json.loads(output)["emulated"]
    # For a person the same.
    code, text = doctor()
    assert code == EXIT_OK
    assert "EMULATED" not in text
    assert all(f" {name} " in text for name in checks)


def test_a_gpu_that_is_wanted_and_not_there_is_an_error(doctor: Any) -> None:
    code, output = doctor("--json", SLURMMESH_GPU_PLATFORM="rocm")
    assert code == EXIT_SETUP_FAILED
    assert by_name(output)["libraries"]["state"] == "error"


@pytest.mark.parametrize("platform", ["rocm", pytest.param("cuda", marks=pytest.mark.slow)])
def test_the_emulator_is_labelled(doctor: Any, platform: str) -> None:
    try:
        folder = build.emulator()
    except build.BuildFailed as error:
        pytest.skip(str(error))
    environ = {
        "LD_LIBRARY_PATH": str(folder),
        "SLURMMESH_GPU_PLATFORM": platform,
        "SLURMMESH_EMULATOR_DEVICES": "2",
    }
    code, output = doctor("--json", **environ)
    checks = by_name(output)
    assert json.loads(output)["emulated"]
    assert checks["EMULATED"]["text"].startswith("EMULATED: ")
    assert checks["platform"]["text"].startswith(platform)
    assert checks["device 1"]["text"].startswith("EMULATED ")
    assert "device 2" not in checks
    assert checks["functions"]["state"] == "ok"
    assert str(folder) in checks["gpu"]["text"]
    code, text = doctor(**environ)
    assert "EMULATED GPU libraries" in text.splitlines()[0]
    assert code == EXIT_OK


def test_a_real_library_without_a_gpu(doctor: Any, tmp_path: Path) -> None:
    try:
        libraries = find("debian-12")
    except NotFetched as reason:
        pytest.skip(str(reason))
    # All but the C library that came with them: this process has its own.
    links = tmp_path / "links"
    links.mkdir()
    for path in (path for folder in libraries.folders for path in folder.glob("lib*.so*")):
        if not path.name.startswith(GLIBC) and not (links / path.name).exists():
            (links / path.name).symlink_to(path)
    code, output = doctor("--json", LD_LIBRARY_PATH=str(links))
    checks = by_name(output)
    if "GLIBC_" in checks.get("libraries", {}).get("text", ""):
        pytest.skip("this machine's C library is too old for them")
    assert code == EXIT_OK
    assert not json.loads(output)["emulated"]
    assert "libamdhip64.so.5" in checks["gpu"]["text"]
    assert checks["version"]["state"] == "warning"
    assert "HIP 5.2" in checks["version"]["text"]
    assert checks["functions"]["state"] == "note"
    assert checks["devices"]["state"] == "note"
    assert "hipGetDeviceCount" in checks["devices"]["text"]


@pytest.mark.parametrize(
    ("grief", "end", "at_load"),
    [
        ("abort()", "was killed by signal 6", True),
        ("abort()", "was killed by signal 6", False),
        ("_exit(0)", "ended with code 0", False),
    ],
)
def test_a_library_that_crashes(
    doctor: Any, broken: Any, grief: str, end: str, at_load: bool
) -> None:
    code, output = doctor("--json", LD_LIBRARY_PATH=broken(grief, at_load))
    checks = by_name(output)
    assert code == EXIT_SETUP_FAILED
    doing = "loading the GPU libraries" if at_load else "asking for devices"
    said = f"it {end} while {doing}: HSA_STATUS_ERROR: all is lost"
    assert checks["libraries"]["text"] == said
    assert checks["job folders"]["state"] == "ok"  # it went on


@pytest.mark.slow
def test_a_library_that_hangs(doctor: Any, broken: Any) -> None:
    folder = broken("pause()")
    code, output = doctor("--json", "--timeout", "1.5", LD_LIBRARY_PATH=folder)
    assert code == EXIT_SETUP_FAILED
    assert by_name(output)["libraries"]["text"] == "no answer within 1.5 s while asking for devices"
    assert f"{folder}/libamdhip64.so.7" in by_name(output)["gpu"]["text"]


@pytest.mark.slow
def test_masks_and_settings_that_are_wrong(doctor: Any) -> None:
    wrong = {ROCR: "4,5", "HIP_VISIBLE_DEVICES": "7", "SLURMMESH_GPU_PLATFORM": "vulkan"}
    code, output = doctor("--json", **wrong)
    checks = by_name(output)
    assert code == EXIT_SETUP_FAILED
    assert checks["together"]["state"] == "error"
    assert "SLURMMESH_GPU_PLATFORM=vulkan" in checks["settings"]["text"]
    code, output = doctor("--json", SLURMMESH_JOB_ROOT="")
    assert by_name(output)["settings"]["state"] == "error"
    assert code == EXIT_SETUP_FAILED


def test_torch_is_not_imported() -> None:
    program = "import sys; from slurmmesh.doctor.command import look; look(60)\n"
    program += "print([name for name in ('torch', 'torchft', 'numpy') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=clean()
    )
    assert done.stdout == "[]\n", done.stderr


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "version_of", lambda _package: "")
    states = {check.name: check.state for check in python.checks()}
    assert states["torch"] == states["torchft"] == "note"
    assert states["submitit"] == "error"


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ("", "")),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", ("cuda", "13.0")),
        ("cuda = None\nhip: Optional[str] = '7.1.25424'\n", ("rocm", "7.1.25424")),
        ("# nothing\n", ("", "")),
    ],
)
def test_what_torch_was_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, build: tuple[str, str]
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError")
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert python.torch_build() == build


def test_a_timeout_that_is_none(doctor: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slurmmesh", "doctor", "--timeout", "-1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == EXIT_USAGE
    assert "--timeout" in done.stderr


@pytest.mark.slow
@pytest.mark.slurm
def test_in_a_job() -> None:
    with Lab(nodes=1, gpus=4) as lab:
        command = ["srun", "-N1", "--gpus=2", sys.executable, "-m", "slurmmesh", "doctor", "--json"]
        environ = {name: value for name, value in lab.env().items() if name not in VARIABLES}
        done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == EXIT_OK, done.stdout + done.stderr
    checks = by_name(done.stdout)
    assert checks["slurm"]["state"] == "ok"
    assert checks["slurm"]["text"].startswith("slurm")
    assert "GPUs 0,1" in checks["job"]["text"]
    assert checks[ROCR]["text"] == "0,1"
