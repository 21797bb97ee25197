"""``python -m slurmmesh.lab`` as a user runs it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab, processes
from slurmmesh.lab import __main__ as cli_module

slurm = pytest.mark.slurm
Wait = Callable[..., None]
Gone = Callable[[str], bool]


def root_of(conf: str) -> str:
    return str(Path(conf.strip()).parent.parent)


# -- exec -----------------------------------------------------------------------------------------


@pytest.mark.slow
@slurm
def test_exec_runs_a_command_on_sixteen_nodes_and_leaves_nothing(cli: Any, is_gone: Gone) -> None:
    done = cli.run("exec", "--nodes", "16", "--", "sh", "-c", "sinfo -h -o %D; echo $SLURM_CONF")
    assert (done.returncode, done.stderr) == (0, "")
    nodes, conf = done.stdout.splitlines()
    assert nodes == "16"
    assert is_gone(root_of(conf))


@slurm
def test_files_of_the_user_hide_no_module_of_pythons(cli: Any) -> None:
    for name in ("json", "queue", "subprocess", "argparse", "socket", "selectors", "pwd"):
        (cli.folder / f"{name}.py").write_text(f"raise RuntimeError('the wrong {name}')")
    done = cli.run("exec", "--nodes", "1", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")


@slurm
@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -KILL $$", 137)])
def test_exec_ends_with_the_commands_code(cli: Any, command: str, code: int) -> None:
    assert cli.run("exec", "--nodes", "1", "--", "sh", "-c", command).returncode == code


@slurm
def test_exec_passes_arguments_input_and_environment_unharmed(cli: Any) -> None:
    arguments = ["a b", "c'd", 'e"f', "$g", "--nodes", "--", "h\ni"]
    show = "import sys, os; print(sys.argv[1:], os.getcwd(), os.environ.get('SLURM_JOB_ID'))"
    show += "; print(os.environ['PATH'], os.environ.get('SBATCH_ACCOUNT'), sys.stdin.read())"
    done = cli.run(
        "exec",
        "--nodes",
        "1",
        "--",
        "python3",
        "-c",
        show,
        *arguments,
        SLURM_JOB_ID="9",
        SBATCH_ACCOUNT="x",
        PATH="/usr/bin:/bin",
    )
    first, second = done.stdout.splitlines()
    assert first == f"{arguments} {cli.folder} None"
    assert second == "/usr/bin:/bin None "


@slurm
def test_exec_restores_what_python_changes_about_signals(cli: Any) -> None:
    """A pipe whose reader has gone ends a program, as in a shell."""
    done = cli.run("exec", "--nodes", "1", "--", "sh", "-c", "trap '' INT; yes | head -n1; echo ok")
    assert done.stdout == "y\nok\n"
    assert "roken pipe" not in done.stderr


@pytest.mark.slow
@slurm
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_exec_reaches_the_command_and_ends_all(
    cli: Any, is_gone: Gone, signum: signal.Signals
) -> None:
    running = cli.start(
        "exec", "--nodes", "2", "--", "sh", "-c", "echo $SLURM_CONF; exec sleep 600"
    )
    root = root_of(running.stdout.readline())
    running.send_signal(signum)
    running.communicate(timeout=60)
    assert running.returncode == 128 + signum
    assert is_gone(root)


@slurm
@pytest.mark.slow
def test_a_command_that_shuns_sigterm_is_killed(cli: Any, is_gone: Gone) -> None:
    running = cli.start(
        "exec",
        "--nodes",
        "1",
        "--",
        "sh",
        "-c",
        "trap '' TERM; echo $SLURM_CONF; while :; do sleep 1; done",
    )
    root = root_of(running.stdout.readline())
    running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == 137
    assert is_gone(root)


@pytest.mark.slow
@slurm
def test_ctrl_c_in_a_terminal_is_the_commands_to_handle(cli: Any, is_gone: Gone) -> None:
    """The terminal signals both; the command gets it once and may go on."""
    script = (
        "import os, signal, sys, time\n"
        "hits = []\n"
        "signal.signal(signal.SIGINT, lambda *a: hits.append(1))\n"
        "print(os.environ['SLURM_CONF'], flush=True)\n"
        "while not hits: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "print('hits', len(hits), flush=True)\n"
        "sys.exit(5)\n"
    )
    argv = cli.argv("exec", "--nodes", "1", "--", "python3", "-c", script)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cli.folder)
        os.execve(argv[0], argv, cli.environment())
    with os.fdopen(terminal, "rb+", buffering=0) as screen:
        lines: list[str] = []
        conf = _read_line(screen, lines)
        screen.write(b"\x03")
        while not (hits := re.search(r"hits (\d)", "".join(lines))):
            _read_line(screen, lines)
        _, status = os.waitpid(pid, 0)
    assert hits[1] == "1"
    assert os.waitstatus_to_exitcode(status) == 5
    assert is_gone(root_of(conf))


def _read_line(screen: Any, lines: list[str]) -> str:
    line = b""
    while not line.endswith(b"\n"):
        line += screen.read(1)
    lines.append(line.decode())
    return lines[-1]


@pytest.mark.slow
@slurm
def test_exec_killed_while_the_lab_starts_leaves_nothing(
    cli: Any, wait_until: Wait, tmp_path: Path
) -> None:
    for signum, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]:
        running = cli.start("exec", "--nodes", "16", "--", "true")
        started: list[int] = []

        def family(pid: int = running.pid, started: list[int] = started) -> bool:
            started[:] = [p.pid for p in processes.descendants(pid)]
            return len(started) > 4

        wait_until(family, "daemons are there")
        running.send_signal(signum)
        running.communicate(timeout=60)
        assert running.returncode == code
        if signum == signal.SIGKILL:
            wait_until(lambda pids=started: not any(map(_exists, pids)), "the lab is gone")
        else:
            assert not any(map(_exists, started))


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@slurm
def test_exec_killed_takes_its_command_and_what_that_left_with_it(
    cli: Any, wait_until: Wait, is_gone: Gone
) -> None:
    script = "echo $SLURM_CONF; (setsid sleep 600 &) ; srun -N2 sleep 600 & echo $!; wait"
    running = cli.start("exec", "--nodes", "2", "--", "sh", "-c", script)
    root, srun = root_of(running.stdout.readline()), int(running.stdout.readline())
    running.kill()
    running.wait()
    wait_until(lambda: is_gone(root), "the lab is gone")
    assert not _exists(srun)
    running.communicate()


@slurm
def test_what_the_command_left_running_ends_with_the_lab(cli: Any, is_gone: Gone) -> None:
    script = "setsid sleep 600 >/dev/null 2>&1 & echo $! $SLURM_CONF"
    done = cli.run("exec", "--nodes", "1", "--", "sh", "-c", script)
    pid, conf = done.stdout.split()
    assert not _exists(int(pid))
    assert is_gone(root_of(conf))


# -- up and down ----------------------------------------------------------------------------------


@pytest.mark.slow
@slurm
def test_up_prints_what_a_shell_can_eval_and_down_ends_it(cli: Any, is_gone: Gone) -> None:
    up = cli.run("up", "--nodes", "2")
    assert (up.returncode, up.stderr) == (0, "")
    shown = subprocess.run(
        ["sh", "-c", f"{up.stdout}\nsinfo -h -o %D; echo $SLURM_CONF"],
        capture_output=True,
        text=True,
        check=True,
    )
    nodes, conf = shown.stdout.splitlines()
    root = root_of(conf)
    try:
        assert nodes == "2"
        assert f"python -m slurmmesh.lab down {root}" in up.stdout
    finally:
        down = cli.run("down", SLURM_CONF=conf)
    assert (down.returncode, down.stdout) == (0, "")
    assert down.stderr == f"slurmmesh.lab: ended the lab in {root}\n"
    assert is_gone(root)
    again = cli.run("down", root)
    assert again.returncode == 6
    assert f"no lab is running in {root}" in again.stderr


@pytest.mark.slow
@slurm
def test_down_asks_which_of_several(cli: Any, is_gone: Gone) -> None:
    roots = [
        root_of(
            cli.run("up", "--nodes", "1").stdout.splitlines()[0].removeprefix("export SLURM_CONF=")
        )
        for _ in range(2)
    ]
    try:
        which = cli.run("down")
        assert which.returncode == 2
        assert all(root in which.stderr for root in roots)
    finally:
        for root in roots:
            assert cli.run("down", root).returncode == 0
    assert all(map(is_gone, roots))


@pytest.mark.slow
@slurm
def test_down_spares_a_lab_that_its_own_program_ends(cli: Any) -> None:
    with Lab(nodes=1) as lab:
        spared = cli.run("down")
        assert spared.returncode == 0
        assert "no lab that was started with up is running" in spared.stderr
        assert str(lab.root) in spared.stderr
        conf = cli.run("up", "--nodes", "1").stdout.splitlines()[0]
        root = root_of(conf.removeprefix("export SLURM_CONF="))
        down = cli.run("down")
        assert (down.returncode, down.stderr) == (0, f"slurmmesh.lab: ended the lab in {root}\n")
        assert lab.states() == {"node1": "idle"}


def test_ctrl_c_while_it_loads_is_quiet(cli: Any) -> None:
    """Struck at the import of its heaviest part, as a key would."""
    (cli.folder / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Strike:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'slurmmesh.lab.core':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Strike())\n"
    )
    path = os.pathsep.join([str(cli.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = cli.run("exec", "--nodes", "1", "--", "true", PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
@slurm
def test_a_lab_that_is_up_survives_its_terminal_and_outer_lab(cli: Any, is_gone: Gone) -> None:
    """`up` inside of `exec`: the outer lab's end is not the inner one's."""
    script = "$PY -m slurmmesh.lab up --nodes 1"
    done = cli.run("exec", "--nodes", "1", "--", "sh", "-c", script, PY=cli.argv()[0])
    conf = done.stdout.splitlines()[0].removeprefix("export SLURM_CONF=")
    try:
        shown = subprocess.run(
            ["sinfo", "-h", "-o", "%D"], env={**os.environ, "SLURM_CONF": conf}, capture_output=True
        )
        assert shown.stdout.strip() == b"1"
    finally:
        assert cli.run("down", root_of(conf)).returncode == 0
    assert is_gone(root_of(conf))


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "up|down|exec"),
        (["exec"], "exec needs a command"),
        (["exec", "--nodes", "4", "--"], "exec needs a command"),
        (["exec", "--nodes", "four", "--", "true"], "four"),
        (["exec", "--node", "0", "--", "true"], "whole number from 1"),
        (["exec", "--nodes", "0", "--", "true"], "whole number from 1"),
        (["up", "--nodes", "9999"], "whole number from 1"),
        (["up", "--", "true"], "up takes no command"),
        (["down", "--", "true"], "down takes no command"),
        (["sideways"], "sideways"),
    ],
)
def test_bad_input_is_one_message_and_code_two(cli: Any, arguments: list[str], words: str) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_is_not_there_is_told_before_a_lab_is_started(cli: Any) -> None:
    done = cli.run("exec", "--nodes", "4", "--", "no-such-program")
    assert done.returncode == 127
    assert done.stderr == "slurmmesh.lab: no-such-program: command not found\n"


def test_a_lab_that_is_not_there_cannot_be_ended(cli: Any) -> None:
    done = cli.run("down", "/nowhere")
    assert done.returncode == 6
    assert "no lab is running in /nowhere" in done.stderr


def test_missing_packages_give_the_line_to_type(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm hidden: the keeper, another interpreter, searches an empty folder."""
    from slurmmesh.lab import core

    hide = "from slurmmesh.lab import packages\n"
    hide += f"packages.search_path = lambda: {str(tmp_path)!r}\n"
    program = core._KEEPER_PROGRAM
    target = "from slurmmesh.lab.keeper import main\n"
    assert target in program
    monkeypatch.setattr(core, "_KEEPER_PROGRAM", program.replace(target, hide + target))
    assert cli_module.main(["up", "--nodes", "1"]) == 6
    words = capsys.readouterr().err
    assert "apt-get install -y --no-install-recommends slurm-wlm slurmctld" in words
    assert "Traceback" not in words
