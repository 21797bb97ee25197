"""The lab for people other than root, and on machines with odd names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
STRANGER = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder everybody can read and write, with a copy of the package."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="smt-"))
    shutil.copytree(
        REPOSITORY / "slurmmesh",
        folder / "src" / "slurmmesh",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def python_for(become: list[str]) -> str:
    """An interpreter that this user may run; the tests' own may be in root's home."""
    for python in (sys.executable, "/usr/bin/python3"):
        # Through a shell: setpriv itself may still run what the user may not.
        check = '"$0" -c "import sys; sys.exit(sys.version_info < (3, 10))"'
        works = [*become, "sh", "-c", check, python]
        if subprocess.run(works, capture_output=True).returncode == 0:
            return python
    pytest.skip("no Python 3.10 that another user may run")


def run_as(
    become: list[str], public: Path, *arguments: str, before: str = ""
) -> subprocess.CompletedProcess[str]:
    lab = [*become, python_for(become), "-m", "slurmmesh.lab", *arguments]
    argv = ["unshare", "-um", "sh", "-c", f'{before}\nexec "$@"', "sh", *lab] if before else lab
    env = {"PATH": os.environ["PATH"], "HOME": str(public), "TMPDIR": str(public)}
    env["PYTHONPATH"] = str(public / "src")
    return subprocess.run(argv, env=env, cwd=public, capture_output=True, text=True, timeout=120)


JOB = "id -u; echo $SLURM_CONF; srun -N2 id -u; srun -N1 -G1 sh -c 'echo gpu $ROCR_VISIBLE_DEVICES'"


@pytest.mark.slow
def test_a_plain_user_runs_jobs_as_that_user(public: Path, is_gone: Callable[[str], bool]) -> None:
    done = run_as(NOBODY, public, "exec", "--nodes", "2", "--", "sh", "-c", JOB)
    assert (done.returncode, done.stderr) == (0, "")
    me, conf, *rest = done.stdout.splitlines()
    assert me == "65534"
    assert rest == ["65534", "65534", "gpu 0"]
    assert Path(conf).parent.parent.parent == public
    assert is_gone(str(Path(conf).parent.parent))


def test_a_plain_user_cannot_have_namespaces(public: Path) -> None:
    done = run_as(NOBODY, public, "exec", "--netns", "--", "true")
    assert done.returncode == 2
    assert "network namespaces need root" in done.stderr


def test_a_user_without_a_name_gets_one_clear_error(public: Path) -> None:
    done = run_as(STRANGER, public, "exec", "--", "true")
    assert done.returncode == 6
    assert "user id 54321 has no entry in the user database" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("become", [[], NOBODY], ids=["root", "nobody"])
@pytest.mark.parametrize(
    ("name", "hosts"),
    [
        ("no-such-host.example", ""),
        ("foo", "127.0.1.1 foo\\n"),
        ("Odd-Name.x", "192.0.2.7 Odd-Name\\n"),
    ],
    ids=["unresolvable", "127.0.1.1", "elsewhere"],
)
def test_the_machines_name_does_not_matter(
    public: Path, become: list[str], name: str, hosts: str
) -> None:
    before = (
        f"hostname {name}; printf '127.0.0.1 localhost\\n{hosts}' > {public}/hosts\n"
        f"mount --make-rprivate / && mount --bind {public}/hosts /etc/hosts"
    )
    script = "hostname; srun -N2 hostname; sbatch -o /dev/null --wrap 'srun -N1 true'"
    done = run_as(become, public, "exec", "--nodes", "2", "--", "sh", "-c", script, before=before)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:3] == [name] * 3


@pytest.mark.slow
def test_cgroup_v2_without_systemd_does_no_harm(public: Path) -> None:
    """As in most containers; slurmd's own choice of plugin fails there."""
    before = "mount --make-rprivate / && mount -t cgroup2 none /sys/fs/cgroup"
    done = run_as(NOBODY, public, "exec", "--nodes", "1", "--", "srun", "id", "-u", before=before)
    assert (done.returncode, done.stdout) == (0, "65534\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["missing", "long", "full"])
def test_a_bad_tmpdir_gives_a_lab_elsewhere(public: Path, bad: str) -> None:
    folder = public / ("l" * 90 if bad == "long" else bad)
    before = f"mount --make-rprivate /; mkdir -p {folder}"
    if bad == "full":
        before += f"; mount -t tmpfs -o size=64k none {folder}"
    if bad == "missing":
        before = "true"
    lab = ["env", f"TMPDIR={folder}", *NOBODY]
    done = run_as(
        lab, public, "exec", "--nodes", "1", "--", "sh", "-c", "echo $SLURM_CONF", before=before
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("/tmp/slurmmesh-", "/var/tmp/slurmmesh-", "/dev/shm/slurmmesh-"))
