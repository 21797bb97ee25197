"""How labs begin and end: alone, two at once, in bad circumstances, and by force."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.errors import LabError, UsageError
from slurmmesh.lab import Lab, core, ports, processes

pytestmark = pytest.mark.slurm


def family(lab: Lab) -> dict[str, int]:
    """The lab's helpers: command name to pid."""
    root = str(lab.root)
    marked = {p.name: p.pid for p in processes.marked(root)}
    keeper = lab._keeper_pid
    table = processes.descendants(keeper)
    return {**marked, "lab-keeper": keeper, **{p.name: p.pid for p in table}}


def busy(lab: Lab, folder: Path, wait_until: Callable[..., None]) -> None:
    """Let every node run a task that shuns SIGTERM and has left its session."""
    script = folder / "busy.sh"
    script.write_text(
        f"trap '' TERM; touch {folder}/$SLURMD_NODENAME; setsid sh -c 'sleep 600' & sleep 600\n"
    )
    lab.run("sbatch", "-N", str(len(lab.nodes)), "-o/dev/null", "--wrap", f"srun sh {script}")
    wait_until(lambda: all((folder / node).exists() for node in lab.nodes), "tasks run")


@pytest.mark.slow
def test_nothing_is_left_after_a_lab_with_running_jobs(
    tmp_path: Path, wait_until: Callable[..., None], is_gone: Callable[[str], bool]
) -> None:
    with Lab(2) as lab:
        root = str(lab.root)
        busy(lab, tmp_path, wait_until)
    assert is_gone(root)
    with pytest.raises(LabError, match="not running"):
        lab.states()
    lab.stop()


@pytest.mark.slow
def test_a_task_gets_sigterm_before_it_is_killed(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    with Lab(1) as lab:
        trap = f"trap 'echo tidied > {tmp_path}/tidied; exit' TERM; touch {tmp_path}/ready"
        (tmp_path / "task").write_text(f"{trap}\nwhile :; do sleep 0.05; done\n")
        lab.run("sbatch", "-o/dev/null", "--wrap", f"srun sh {tmp_path}/task")
        wait_until(lambda: (tmp_path / "ready").exists(), "the task runs")
    assert (tmp_path / "tidied").read_text() == "tidied\n"


@pytest.mark.slow
def test_labs_started_at_the_same_time_do_not_meet() -> None:
    labs = [Lab(3) for _ in range(3)]
    threads = [threading.Thread(target=lab.start) for lab in labs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        used = [re.findall(r"Port=(\d+)", lab.conf.read_text()) for lab in labs]
        assert len({port for each in used for port in each}) == 3 * 4
        assert [set(lab.states().values()) for lab in labs] == [{"idle"}] * 3
    finally:
        for lab in labs:
            lab.stop()


@pytest.mark.slow
def test_a_port_lost_to_another_program_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The race that remains: a program takes a port between the look and the daemon's bind."""
    program = (
        "import socket, sys\n"
        "from slurmmesh.lab import manager, ports\n"
        "claim, taken = ports.PortClaims.claim, []\n"
        "def lose(self, count):\n"
        "    given = claim(self, count)\n"
        "    if len(taken) < 2:\n"
        "        taken.append(socket.create_server(('', given[-1 if taken else 0])))\n"
        "    return given\n"
        "ports.PortClaims.claim = lose\n"
        "from slurmmesh.lab.keeper import main\n"
    )
    original = core._KEEPER_PROGRAM
    patched = original.replace("from slurmmesh.lab.keeper import main\n", program)
    assert patched != original
    monkeypatch.setattr(core, "_KEEPER_PROGRAM", patched)
    with Lab(2) as lab:
        assert set(lab.states().values()) == {"idle"}
        output = (lab.root / "log" / "slurmctld.out").read_text()
        assert "Address already in use" in output
        assert "Address already in use" in (lab.root / "log" / "slurmd.node2.out").read_text()


def test_ports_of_a_lab_that_has_just_ended_are_free_again() -> None:
    with Lab(1) as lab:
        used = [int(port) for port in re.findall(r"Port=(\d+)", lab.conf.read_text())]
        lab.run("srun", "true")
        assert not any(ports.is_free(port) for port in used)
    assert all(ports.is_free(port) for port in used)


@pytest.mark.slow
@pytest.mark.parametrize(
    "victims", [["lab-keeper"], ["lab-manager"], ["lab-keeper", "lab-manager"]]
)
def test_nothing_survives_its_helpers(
    victims: list[str], tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    with Lab(2) as lab:
        root, members = str(lab.root), family(lab)
        busy(lab, tmp_path, wait_until)
        everything = {p.pid for p in processes.descendants(members["lab-keeper"])}
        assert len(everything) > 10
        for victim in victims:
            os.kill(members[victim], signal.SIGKILL)
        wait_until(lambda: not alive(everything), "all are gone")
        if len(victims) == 1:
            wait_until(lambda: not os.path.exists(root), "the folder is gone")
        with pytest.raises(LabError, match="no lab is running"):
            lab.kill_node("node1")
    if os.path.exists(root):
        subprocess.run(["rm", "-r", root], check=True)


def alive(pids: set[int]) -> list[processes.Process]:
    return [p for p in processes.process_table().values() if p.pid in pids and p.state != "Z"]


def test_a_lab_ends_when_its_owner_is_killed_while_a_child_of_it_lives(
    wait_until: Callable[..., None], is_gone: Callable[[str], bool]
) -> None:
    """The child holds a copy of the pipe that the keeper reads, so that is not enough."""
    program = (
        "import os, time\n"
        "from slurmmesh.lab import Lab\n"
        "lab = Lab(1).start()\n"
        "child = os.fork()\n"
        "if child: print(lab.root, child, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    root, child = owner.stdout.readline().split()
    try:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        wait_until(lambda: is_gone(root), "the lab is gone")
    finally:
        os.kill(int(child), signal.SIGKILL)
        owner.stdout.close()


def test_a_forked_child_does_not_end_its_parents_lab() -> None:
    with Lab(1) as lab:
        child = os.fork()
        if child == 0:
            lab.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert lab.states() == {"node1": "idle"}


def test_an_error_in_the_with_block_ends_the_lab(is_gone: Callable[[str], bool]) -> None:
    roots = []

    def interrupted() -> None:
        with Lab(1) as lab:
            roots.append(str(lab.root))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert is_gone(roots[0])


def test_a_lab_can_be_started_again() -> None:
    lab = Lab(1)
    for _ in range(2):
        with lab:
            assert lab.states() == {"node1": "idle"}
            with pytest.raises(UsageError, match="another Lab"):
                lab.start()


def test_a_daemon_that_will_not_start_tells_why() -> None:
    with pytest.raises(LabError) as caught:
        Lab(1, settings={"SelectType": "select/nonsense"}).start()
    assert "slurmctld ended with code 1; its last words:" in str(caught.value)
    assert "select/nonsense" in str(caught.value)


def test_a_lab_that_is_not_ready_in_time_says_so() -> None:
    with pytest.raises(LabError, match="waited 0 s for"):
        Lab(1, start_timeout_s=0.001).start()


def test_files_stay_in_a_folder_of_ones_own() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with Lab(1, directory=Path(folder) / "lab") as lab:
            lab.run("srun", "true")
            assert lab.root == Path(folder) / "lab"
        lab_root = Path(folder) / "lab"
        assert "node1" in (lab_root / "etc" / "slurm.conf").read_text()
        assert (lab_root / "log" / "slurmctld.log").exists()
        assert not (lab_root / "run").exists()
        assert not (lab_root / "etc" / "munge.key").exists()
        with pytest.raises(UsageError, match="not empty"):
            Lab(1, directory=lab_root).start()


def test_no_socket_of_the_lab_is_open_after_it(is_gone: Callable[[str], bool]) -> None:
    with Lab(1) as lab:
        root = str(lab.root)
        assert root in Path("/proc/net/unix").read_text()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"{root}/run/munge.sock")
    assert root not in Path("/proc/net/unix").read_text()
    assert is_gone(root)
