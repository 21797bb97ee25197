"""Into an image: command lines, environments, and what the commands' server takes and refuses."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh._version import __version__
from slurmmesh.errors import UsageError
from slurmmesh.slurm.container import commands, inside
from slurmmesh.slurm.container.commands import Commands
from slurmmesh.slurm.container.image import Container, missing_here
from slurmmesh.slurm.job import SlurmJob

GOLDEN = Path(__file__).parent / "golden"
JOB = SlurmJob(
    "train.py",
    args=["--lr", "3e-4"],
    nodes=2,
    container="img.sif",
    env={"NCCL_DEBUG": "it's $HOME", "LD_LIBRARY_PATH": "/opt/lib"},
    job_root="/shared/jobs",
    chdir="/shared/work",
    python="/opt/venv/bin/python",
)
PYXIS = dataclasses.replace(
    JOB, container="nvcr.io#nvidia/pytorch:24.01", container_runtime="pyxis"
)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


def container(**fields: Any) -> Container:
    return Container(**{"runtime": "apptainer", "image": "i.sif", "mounts": ("/a",), **fields})


@pytest.mark.parametrize(("name", "job"), [("apptainer", JOB), ("pyxis", PYXIS)])
def test_golden_scripts(name: str, job: SlurmJob) -> None:
    """UPDATE_GOLDEN=1 writes them anew; then read the difference."""
    golden = GOLDEN / f"container-{name}.sh"
    script = job.script()
    if "UPDATE_GOLDEN" in os.environ:
        golden.write_text(script.replace(__version__, "VERSION"), encoding="utf-8")
    assert script == golden.read_text(encoding="utf-8").replace("VERSION", __version__)


# ------------------------------------------------------------------ the container of a job


def test_what_is_mounted() -> None:
    assert Container.of(JOB).mounts == ("/shared/jobs", "/shared/work")
    elsewhere = dataclasses.replace(JOB, program="/apps/x/train.py", job_root="/shared/work/jobs")
    assert Container.of(elsewhere).mounts == ("/apps/x", "/shared/work")
    module = dataclasses.replace(JOB, program=("-m", "package.train"), chdir="/shared/./jobs/a/..")
    assert Container.of(module).mounts == ("/shared/jobs",)
    similar = dataclasses.replace(JOB, chdir="/shared/jobs2")
    assert Container.of(similar).mounts == ("/shared/jobs", "/shared/jobs2")


@pytest.mark.parametrize(
    ("runtime", "given", "found"),
    [
        ("apptainer", "img.sif", "/shared/work/img.sif"),
        ("apptainer", "../sandbox", "/shared/work/../sandbox"),
        ("apptainer", "docker://rocm/pytorch:latest", "docker://rocm/pytorch:latest"),
        ("pyxis", "img.sqsh", "/shared/work/img.sqsh"),
        ("pyxis", "./img", "/shared/work/./img"),
        ("pyxis", "ubuntu:22.04", "ubuntu:22.04"),
        ("pyxis", "/images/x.sqsh", "/images/x.sqsh"),
    ],
)
def test_an_image_is_a_path_or_a_name(runtime: Any, given: str, found: str) -> None:
    job = dataclasses.replace(JOB, container=given, container_runtime=runtime)
    assert Container.of(job).image == found
    assert bool(missing_here(job)) == found.startswith("/")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"container": "-x.sif"}, "no image"),
        ({"container": "a\nb"}, "no image"),
        ({"chdir": "/"}, "cannot be"),
        ({"container_runtime": "pyxis", "chdir": "/my work"}, "pyxis cannot mount '/my work'"),
        ({"container_runtime": "pyxis", "job_root": "/a:b"}, "pyxis cannot mount"),
        ({"container_runtime": "docker"}, "apptainer or pyxis"),
        ({"container": "", "container_runtime": "pyxis"}, "needs --container"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        dataclasses.replace(JOB, **change)


@given(TEXT, st.dictionaries(TEXT, TEXT))
def test_it_comes_through_the_script_as_it_was(folder: str, env: dict[str, str]) -> None:
    given = container(image=folder, mounts=(f"/{folder}",), env=env)
    text = given.to_json()
    assert "\n" not in text
    assert Container.from_json(text) == given


# A double for the Python of the submit: shows what the script becomes, and what that can read.
SHOW = """#!/bin/sh
tr '\\0' '\\n' </proc/$$/cmdline
env
echo ==
cat
"""


def test_no_value_of_env_is_in_a_command_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(SHOW)
    python.chmod(0o755)
    # Together more than the kernel takes as one argument.
    secrets = {f"TOKEN_{i}": f"it's secret\n$(id) sm_container\n{'x' * 60_000}" for i in range(4)}
    paths = {"job_root": tmp_path, "chdir": tmp_path, "python": str(python)}
    job = dataclasses.replace(JOB, env=secrets, **paths)
    script = tmp_path / "script.sh"
    script.write_text(job.script())
    done = subprocess.run(
        ["bash", script],
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "1"},
        capture_output=True,
        text=True,
    )
    told = (tmp_path / "7" / "attempt-0" / "controller.log").read_text()
    assert done.returncode == 0, done.stderr + told
    open_to_all, _, text = told.partition("\n==\n")
    assert "train.py\n--lr\n3e-4\n" in open_to_all
    assert "secret" not in open_to_all
    given = Container.from_json(text)
    assert given == Container.of(job)
    own = {"OWN": "secret"}
    for runtime in ("apptainer", "pyxis"):
        way_in = dataclasses.replace(given, runtime=runtime)
        words = way_in.of_step("/", ["true"], own, way_in.environ({}, own))
        assert "secret" not in str([*words, *way_in.here("/", ["true"])])


@given(TEXT)
def test_any_path_can_be_mounted_by_apptainer(name: str) -> None:
    words = container(mounts=(f"/{name}",)).here("/", ["true"])
    value = words[words.index("--mount") + 1]
    assert next(csv.reader([value], strict=True)) == [
        "type=bind",
        f"source=/{name}",
        f"destination=/{name}",
    ] or any(each in name for each in "\r\n")


# ------------------------------------------------------------------ environments


OUTSIDE = {
    "PATH": "/opt/venv/bin:/usr/bin",
    "PYTHONPATH": "/outside",
    "VIRTUAL_ENV": "/opt/venv",
    "CONDA_PREFIX": "/opt/conda",
    "LD_PRELOAD": "/site/hook.so",
    "APPTAINER_CLEANENV": "1",
    "APPTAINER_BIND": "/scratch",
    "SLURM_JOB_ID": "7",
}


def test_the_environment_for_apptainer() -> None:
    env = {"NCCL_DEBUG": "INFO", "PYTHONPATH": "/inside", "LD_LIBRARY_PATH": "/l"}
    found = container(env=env).environ(OUTSIDE, {"SLURMMESH_STEP_TAG": "7.1"})
    assert found["SLURM_JOB_ID"] == "7"
    assert found["APPTAINER_BIND"] == "/scratch"
    assert found["NCCL_DEBUG"] == found["APPTAINERENV_NCCL_DEBUG"] == "INFO"
    assert found["APPTAINERENV_PYTHONPATH"] == found["SINGULARITYENV_PYTHONPATH"] == "/inside"
    assert found["APPTAINERENV_SLURMMESH_STEP_TAG"] == "7.1"
    assert found["APPTAINERENV_PYTHONNOUSERSITE"] == "1"
    gone = {"PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_PRELOAD", "LD_LIBRARY_PATH"}
    assert not (gone | {"APPTAINER_CLEANENV"}) & found.keys()


def test_the_environment_and_the_options_for_pyxis() -> None:
    pyxis = container(runtime="pyxis", mounts=("/a", "/b"), env={"NCCL_DEBUG": "INFO"})
    found = pyxis.environ({**OUTSIDE, "LD_LIBRARY_PATH": "/srun"}, {"OWN": "x", "odd%%": "y"})
    assert found["NCCL_DEBUG"] == "INFO"
    assert found["LD_LIBRARY_PATH"] == "/srun"
    assert "PYTHONPATH" not in found
    environ = {"PYXIS_CONTAINER_MOUNTS": "/data:/data:ro", "PYXIS_CONTAINER_ENV": "HF_HOME"}
    words = pyxis.of_step("/a", ["python3", "x"], {"OWN": "x", "odd%%": "y"}, environ)
    assert words[:3] == [
        "--container-image=i.sif",
        "--container-mounts=/a:/a,/b:/b,/data:/data:ro",
        "--container-env=PYTHONNOUSERSITE,NCCL_DEBUG,OWN,HF_HOME",
    ]
    assert words[3:5] == ["/bin/sh", "-c"]
    assert words[6:] == ["i.sif", "/a", "python3", "x"]


def enter(folder: str, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a runtime runs in the image, run here."""
    words = container(runtime="pyxis").of_step(folder, command, {}, {})[3:]
    return subprocess.run(
        words, env={"PATH": "/usr/bin:/bin", **environ}, capture_output=True, text=True
    )


def test_what_runs_first_in_the_image(tmp_path: Path) -> None:
    folder = tmp_path / "a b'$x"
    folder.mkdir()
    done = enter(str(folder), "sh", "-c", 'pwd; echo "$TMPDIR,$1"', "_", "c d", TMPDIR="/gone")
    assert done.stdout == f"{folder}\n,c d\n"
    assert enter("/", "sh", "-c", "echo $TMPDIR", TMPDIR="/tmp").stdout == "/tmp\n"
    done = enter("/gone", "true")
    assert done.returncode == 6
    assert "the image i.sif does not have the working folder /gone" in done.stderr
    done = enter("/", "python99")
    assert (done.returncode, done.stderr) == (6, "slurmmesh: the image i.sif has no python99\n")


def test_a_node_without_apptainer_says_so() -> None:
    done = subprocess.run(
        container().here("/", ["true"]), env={"PATH": "/nowhere"}, capture_output=True, text=True
    )
    assert done.returncode == 6
    assert "neither apptainer nor singularity is installed on" in done.stderr


# ------------------------------------------------------------------ what may be asked for


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        (["--overlap", "-n1", "python3", "-c", "x"], ["--overlap", "-n1"], ["python3", "-c", "x"]),
        (["--nodes=1", "--", "-odd"], ["--nodes=1"], ["-odd"]),
        (["true"], [], ["true"]),
    ],
)
def test_options_of_srun_and_its_command(
    words: list[str], options: list[str], command: list[str]
) -> None:
    assert commands.split(words) == (options, command)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--overlap"],
        ["--jobid=5", "true"],
        ["--container-image=other", "true"],
        ["--clusters=b", "true"],
    ],
)
def test_no_srun_out_of_the_image_or_the_job(words: list[str]) -> None:
    with pytest.raises(UsageError):
        commands.split(words)


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("squeue --noheader", True),
        ("scontrol --oneliner show node n1", True),
        ("scontrol ping", True),
        ("scontrol update jobid=7", False),
        ("scontrol --oneliner update jobid=7", False),
        ("scontrol", False),
        ("scancel 7.1", True),
        ("scancel --signal=USR2 7.1", True),
        ("scancel 7", True),
        ("scancel 7_1", False),
        ("scancel 8.1", False),
        ("scancel --user=me", False),
        ("scancel 7.1 8", False),
        ("scancel", False),
        ("sbatch x.sh", False),
    ],
)
def test_only_looking_and_ending_steps(line: str, allowed: bool) -> None:
    name, *words = line.split()
    if allowed:
        commands.check(name, words, "7")
    else:
        with pytest.raises(UsageError, match="not at hand"):
            commands.check(name, words, "7")


# ------------------------------------------------------------------ messages and the server


@given(st.binary(max_size=40), st.dictionaries(st.text(), st.text()))
def test_messages_are_whole_or_refused(garbage: bytes, message: dict[str, str]) -> None:
    buffer = bytearray(inside.packed(message) + inside.packed({"next": 1})[:5])
    assert inside.unpacked(buffer) == message
    assert inside.unpacked(buffer) is None
    try:
        found = inside.unpacked(bytearray(garbage))
    except ValueError:
        return
    assert found is None or isinstance(found, dict)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with (
        selectors.DefaultSelector() as selector,
        Commands(selector, container(), tmp_path / "commands") as server,
    ):
        yield server


def connect(server: Commands) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect("\0" + server.name)
    server.serve()
    return sock


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        inside.packed({}),
        inside.packed({"command": 3, "words": None, "environ": [], "folder": 1}),
        inside.packed({"signal": 9999}),
        inside.packed({"entered": True, "command": []})[:-1] + b"]",
        b"\0\0\0\2[]",
    ],
)
def test_nonsense_is_hung_up_on(server: Commands, data: bytes) -> None:
    with connect(server) as sock:
        sock.sendall(data)
        server.serve()
        sock.settimeout(10)
        answer = sock.recv(1000)
        assert answer == b"" or b"error" in answer
    with connect(server) as sock:  # and the next one is heard
        request = {"command": "sbatch", "words": [], "environ": {}, "folder": "/"}
        sock.sendall(inside.packed(request))
        server.serve()
        assert b"not at hand" in sock.recv(1000)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_not_heard(server: Commands) -> None:
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
        "s.connect('\\0' + sys.argv[1]); sys.exit(s.recv(1) != b'')"
    )
    other = subprocess.Popen([sys.executable, "-c", code, server.name])
    server.serve()
    assert other.wait(10) == 0


def test_a_stand_in_alone_says_why(tmp_path: Path) -> None:
    words = [sys.executable, inside.__file__, "slurmmesh-gone", "srun", "true"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert "srun: error: " in done.stderr
    assert "on the node of the controller" in done.stderr


@pytest.mark.parametrize(
    ("version", "module", "words"),
    [
        ("0.0.1", "slurmmesh.hosts.program", f"has slurmmesh {__version__}, the submit had 0.0.1"),
        (__version__, "slurmmesh.hosts.program", "cannot reach the launcher outside"),
        (__version__, "slurmmesh.gone", f"`pip install slurmmesh=={__version__}`"),
    ],
)
def test_what_is_wrong_with_an_image_is_told(version: str, module: str, words: str) -> None:
    # There is no launcher to reach here, so each of them ends before the module runs.
    done = subprocess.run(
        [sys.executable, inside.__file__, "slurmmesh-gone", "enter", "i.sif", version, module],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 6
    assert words in done.stderr
    assert "the image i.sif" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_stand_ins_are_private(server: Commands) -> None:
    assert server.folder.stat().st_mode & 0o777 == 0o700
    names = {path.name for path in server.folder.iterdir()}
    assert names == {"inside.py", *commands.NAMES}
    assert json.dumps(server.name) not in os.environ.values()
