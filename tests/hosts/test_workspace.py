"""A program's code on hosts that do not see its folder, edited while procs run there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.errors import ActorError, HostLost, UsageError, WorkspaceError
from slurmmesh.hosts.mesh import HostMesh

ROOT = Path(__file__).parents[2]


class Here(sm.Actor):
    """Looks around in its proc. It travels by value: its own module need not be there."""

    @sm.endpoint
    def look(self):
        return {"cwd": os.getcwd(), "path": list(sys.path)}

    @sm.endpoint
    def run(self, code):
        found: dict = {}
        exec(code, found)
        return found.get("result")


Here.__module__ = "__main__"


def ask(hosts: HostMesh, code: str, **spawn) -> list:
    """What new procs on these hosts find, one on each."""
    procs = hosts.spawn_procs(**spawn)
    try:
        return procs.spawn("here", Here).run.call(code).get(60).values()
    finally:
        procs.stop().get(60)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").touch()
    (folder / "pkg" / "mod.py").write_text("value = 1\n")
    (folder / "helper.py").write_text("def value():\n    return 1\n")
    return folder


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[HostMesh]:
    made = sm.local_hosts(2, tmp_path / "job")
    yield made
    made.stop()


@pytest.mark.slow
def test_procs_find_modules_in_the_copy_and_only_changes_are_sent(hosts, code):
    synced = hosts.sync_workspace(code).get(60)
    assert (synced.files, synced.added) == (*(3, ("helper.py", "pkg/__init__.py", "pkg/mod.py")),)
    assert synced.sent_bytes == 2 * synced.size
    assert set(synced.copies) == set(hosts.names)
    places = ask(hosts, "import helper, pkg.mod; result = helper.__file__, pkg.mod.__file__")
    for copy, place in zip(synced.copies.values(), places, strict=True):
        assert place == (f"{copy}/helper.py", f"{copy}/pkg/mod.py")

    again = hosts.sync_workspace(code).get(60)
    assert (again.sent_bytes, again.added, again.changed) == (0, (), ())
    (code / "helper.py").write_text("def value():\n    return 2\n")
    (code / "pkg" / "mod.py").rename(code / "pkg" / "other.py")
    (code / "data.txt").write_text("new")
    third = hosts.sync_workspace(code, exclude=["*.txt"]).get(60)
    assert third.changed == ("helper.py",)
    assert (third.added, third.removed) == (("pkg/other.py",), ("pkg/mod.py",))
    assert third.sent_bytes == 2 * (code / "helper.py").stat().st_size
    assert third.copies == synced.copies
    look = "import helper, os, pkg.other; result = helper.value(), os.listdir(pkg.__path__[0])"
    for value, listing in ask(hosts, look):
        assert value == 2
        assert "mod.py" not in listing
        assert "other.py" in listing


@pytest.mark.slow
def test_preloaded_modules_are_the_new_ones_too(hosts, code):
    hosts.sync_workspace(code).get(60)
    look = "import sys; result = 'helper' in sys.modules and sys.modules['helper'].value()"
    assert ask(hosts, look, preload=["helper"]) == [1, 1]
    (code / "helper.py").write_text("def value():\n    return 2\n")
    hosts.sync_workspace(code).get(60)
    assert ask(hosts, look, preload=["helper"]) == [2, 2]
    assert ask(hosts, look) == [2, 2]  # once a host, for all that are forked afterwards


@pytest.mark.slow
def test_a_slice_of_the_hosts(hosts, code):
    synced = hosts.slice(hosts=1).sync_workspace(code).get(60)
    assert list(synced.copies) == [hosts.names[1]]
    look = "import importlib.util; result = importlib.util.find_spec('pkg') is not None"
    assert ask(hosts, look) == [False, True]


@pytest.mark.slow
def test_the_working_folder_stays_where_it_is_there(hosts, code):
    hosts.sync_workspace(code).get(60)
    assert ask(hosts, "import os; result = os.getcwd()") == [os.getcwd()] * 2


def test_bad_input_is_refused_before_anything_is_sent(hosts, code, tmp_path):
    (tmp_path / "job" / "x").touch()
    for bad in (
        lambda: hosts.sync_workspace(tmp_path / "none"),
        lambda: hosts.sync_workspace(code / "helper.py"),
        lambda: hosts.sync_workspace(tmp_path / "job"),
        lambda: hosts.sync_workspace(code, exclude="*.py"),
        lambda: hosts.sync_workspace(code, exclude=[1]),
        lambda: hosts.sync_workspace(code, max_bytes=0),
    ):
        with pytest.raises(UsageError):
            bad()
    with pytest.raises(WorkspaceError, match="more than 3 bytes"):
        hosts.sync_workspace(code, max_bytes=3).get(60)
    # Logs and keys of the job stay here.
    synced = hosts.sync_workspace(tmp_path).get(60)
    assert not [path for path in synced.added if path.startswith("job/")]


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.slow
def test_a_host_that_cannot_take_it_is_named_and_the_others_copy_is_whole(hosts, code):
    first = hosts.sync_workspace(code).get(60)
    (code / "helper.py").write_text("def value():\n    return 3\n")
    contents = Path(first.copies["local1"]).parent.parent / "contents"
    shutil.rmtree(contents)
    with pytest.raises(WorkspaceError, match="host local1: the copy cannot be made") as caught:
        hosts.sync_workspace(code).get(60)
    assert caught.value.host == "local1"
    assert ask(hosts, "import helper; result = helper.value()")[1] == 1


def test_a_lost_host_fails_it_and_the_others_go_on(tmp_path, temp, code, wait_until):
    hosts = sm.local_hosts(2)
    try:
        hosts.sync_workspace(code).get(60)
        assert len(list(temp.iterdir())) == 2
        os.kill(hosts._controller.hosts[1].pid, signal.SIGKILL)
        wait_until(lambda: len(list(temp.iterdir())) == 1)  # its copy is gone with it
        with pytest.raises(HostLost):
            hosts.sync_workspace(code).get(60)
        hosts.slice(hosts=0).sync_workspace(code).get(60)
    finally:
        hosts.stop()
    assert not list(temp.iterdir())


# ------------------------------------------------------------------ reloading


ACTORS = """
import slurmmesh as sm
from helper import value

class Counter(sm.Actor):
    def __init__(self):
        self.count = 0
    @sm.endpoint
    def add(self):
        self.count += value()
        return self.count
"""


@pytest.fixture
def counter(code: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[sm.Actor]]:
    (code / "actors.py").write_text(ACTORS)
    monkeypatch.syspath_prepend(str(code))
    before = set(sys.modules)
    import actors

    yield actors.Counter
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_edits_reach_actors_that_run_and_they_keep_their_state(hosts, code, counter):
    hosts.sync_workspace(code).get(60)
    procs = hosts.spawn_procs({"gpus": 2})
    one, other = procs.spawn("one", counter), procs.spawn("other", counter)
    assert one.add.call().get(60).values() == [1] * 4
    assert procs.reload().get(60).values() == [()] * 4
    (code / "helper.py").write_text("def value():\n    return 10\n")
    synced = hosts.sync_workspace(code, auto_reload=True).get(60)
    assert synced.reloaded == ("helper", "actors")
    assert one.add.call().get(60).values() == [11] * 4
    (code / "actors.py").write_text(ACTORS.replace("value()", "2 * value()"))
    hosts.sync_workspace(code).get(60)
    assert one.add.call().get(60).values() == [21] * 4  # not asked to reload
    assert procs.slice(gpus=0).reload().get(60).values() == [("actors",)] * 2
    assert one.add.call().get(60).values() == [41, 31, 41, 31]
    assert other.add.call().get(60).values() == [20, 10, 20, 10]
    assert procs.reload("helper").get(60).values() == [("helper", "actors")] * 4
    with pytest.raises(TypeError):
        procs.reload(1)
    procs.stop().get(60)


@pytest.mark.slow
def test_code_that_does_not_run_is_told_and_the_actors_go_on(hosts, code, counter):
    hosts.sync_workspace(code).get(60)
    counters = hosts.spawn_procs().spawn("counter", counter)
    assert counters.add.call().get(60).values() == [1, 1]
    (code / "helper.py").write_text("def value(:\n")
    with pytest.raises(ActorError, match="SyntaxError"):
        hosts.sync_workspace(code, auto_reload=True).get(60)
    assert counters.add.call().get(60).values() == [2, 2]
    (code / "helper.py").write_text("def value():\n    return 5\n")
    assert hosts.sync_workspace(code, auto_reload=True).get(60).reloaded == ("helper", "actors")
    assert counters.add.call().get(60).values() == [7, 7]


@pytest.mark.slow
def test_on_a_shared_file_system_edits_are_reloaded_without_a_copy(tmp_path, code, counter):
    hosts = sm.local_hosts(1)
    try:
        procs = hosts.spawn_procs()
        counters = procs.spawn("counter", counter)
        assert counters.add.call().get(60).values() == [1]
        (code / "helper.py").write_text("def value():\n    return 7\n")
        assert procs.reload().get(60).values() == [("helper", "actors")]
        assert counters.add.call().get(60).values() == [8]
    finally:
        hosts.stop()


# ------------------------------------------------------------------ whole programs


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PROGRAM = """
import slurmmesh as sm
{imports}
class Asker(sm.Actor):
    @sm.endpoint
    def ask(self):
        return value()

if __name__ == "__main__":
    procs = sm.this_host().spawn_procs({{"gpus": 2}})
    print(procs.spawn("asker", Asker).ask.call().get(60).values(),
          procs.spawn("named", Named).ask.call().get(60).values())
"""
NAMED = """
import slurmmesh as sm
class Named(sm.Actor):
    @sm.endpoint
    def ask(self):
        return __name__
"""


@pytest.mark.slow
def test_a_module_beside_the_script_is_importable_in_actors(code, tmp_path):
    (code / "beside.py").write_text(NAMED)
    imports = "from helper import value\nfrom beside import Named"
    (code / "program.py").write_text(PROGRAM.format(imports=imports))
    assert run(tmp_path, str(code / "program.py")) == "[1, 1] ['beside', 'beside']\n"


@pytest.mark.slow
def test_modules_of_a_package_that_is_run_are_importable_in_actors(code):
    (code / "pkg" / "beside.py").write_text(NAMED)
    (code / "pkg" / "helper.py").write_text("def value():\n    return 2\n")
    imports = "from .helper import value\nfrom .beside import Named"
    (code / "pkg" / "__main__.py").write_text(PROGRAM.format(imports=imports))
    (code / "pkg" / "program.py").write_text(PROGRAM.format(imports=imports))
    for module in ("pkg", "pkg.program"):
        assert run(code, "-m", module) == "[2, 2] ['pkg.beside', 'pkg.beside']\n"


def can_hide_folders() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


HIDING = """
import os, subprocess, sys
import slurmmesh as sm
from slurmmesh.hosts import local

def hidden(module, *args):
    # The agent of a node that does not have this folder: nothing is in the one above it.
    return ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && cd / && exec "$@"',
            FOLDER, *plain(module, *args)]

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
plain, local.python_command = local.python_command, hidden

import beside

class Where(sm.Actor):
    @sm.endpoint
    def look(self, path):
        import helper
        return os.path.exists(path), os.getcwd(), helper.value(), helper.__file__

if __name__ == "__main__":
    hosts = sm.local_hosts(2)
    before = hosts.spawn_procs().spawn("named", beside.Named)
    print(type(before.initialized.exception(60)).__name__)
    synced = hosts.sync_workspace().get(60)
    procs = hosts.spawn_procs({"gpus": 2}, preload=["beside"])
    print(procs.spawn("named", beside.Named).ask.call().get(60).values())
    for there, cwd, value, file in procs.spawn("where", Where).look.call(__file__).get(60).values():
        print(there, value, cwd in map(os.path.realpath, synced.copies.values()),
              file.removesuffix("/helper.py") in synced.copies.values())
    hosts.stop()
    print(any(map(os.path.exists, synced.copies.values())))
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_hide_folders(), reason="needs root and a mount namespace of its own")
def test_hosts_without_the_folder(code):
    """No double: the agents live in mount namespaces without the program's folder."""
    (code / "beside.py").write_text(NAMED)
    (code / "program.py").write_text(textwrap.dedent(HIDING))
    (code / "weights.bin").write_bytes(os.urandom(9 << 20))  # more than one message holds
    lines = run(code, "program.py").splitlines()
    assert lines[0] == "ProcDied"  # its working folder is not there
    assert lines[1] == str(["beside"] * 4)
    assert lines[2:6] == ["False 1 True True"] * 4
    assert lines[6] == "False"
