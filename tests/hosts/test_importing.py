"""Modules of actors are imported once for all procs of a host, unless they do not bear it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import slurmmesh as sm
from slurmmesh.actors.homes import home_of
from slurmmesh.errors import ActorError, SupervisionError
from slurmmesh.hosts.mesh import HostMesh

MODULE = """\
import os
import slurmmesh as sm

with open({log!r}, "a") as file:
    file.write(f"{{os.getpid()}} ")
{body}

class Look(sm.Actor):
    @sm.endpoint
    def pid(self):
        return os.getpid()

    @sm.endpoint
    def surroundings(self):
        import sys
        return sys.path[-1], os.environ["X"]

    @sm.endpoint
    def value(self):
        return value

    @sm.endpoint
    def spawn(self):
        procs = sm.this_host().spawn_procs({{"gpus": 2}}, name="inner")
        return list(procs.spawn("inner", Look).pid.call().get(60).values())
"""

Write = Callable[..., ModuleType]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "imports"


@pytest.fixture
def write(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module, which notes who imports it, and imports it here."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    made = []

    def write(body: str = "value = 1", name: str = "looks", main: str = "value = 1") -> ModuleType:
        path = folder / f"{name}.py"
        path.write_text(MODULE.format(log=str(log), body=main))
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        made.append(name)
        path.write_text(MODULE.format(log=str(log), body=body))
        log.write_text("")
        return module

    yield write
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def hosts(write: Write, tmp_path: Path) -> Iterator[HostMesh]:
    made = sm.local_hosts(2, tmp_path / "job")
    yield made
    made.stop()


def importers(log: Path) -> list[int]:
    return [int(pid) for pid in log.read_text().split()]


def test_a_module_is_imported_once_for_all_procs_of_a_host(hosts, write, log):
    looks = write("import sys\nsys.path.append('added')\nos.environ['X'] = 'set'\nvalue = 1")
    actors = hosts.spawn_procs({"gpus": 3}).spawn("look", looks.Look)
    pids = actors.pid.call().get(60).values()
    assert len(set(importers(log))) == len(importers(log)) == 2
    assert not set(importers(log)) & set(pids)
    assert list(actors.surroundings.call().get(60).values()) == [("added", "set")] * 6


@pytest.mark.slow
def test_also_for_more_procs_than_are_asked_for_together_and_from_an_actor(hosts, write, log):
    looks = write()
    host = hosts.slice(hosts=0)
    actors = host.spawn_procs({"gpus": 20}).spawn("look", looks.Look)
    pids = set(actors.pid.call().get(60).values())
    assert len(importers(log)) == 1
    inner = actors.slice(gpus=3).spawn.call_one().get(60)
    assert len(importers(log)) == 2
    assert not set(importers(log)) & {*pids, *inner}


@pytest.mark.slow
def test_an_edit_reaches_the_next_procs_and_a_reload_those_that_run(hosts, write, log):
    looks = write()
    first = hosts.spawn_procs()
    actors = first.spawn("look", looks.Look)
    assert list(actors.value.call().get(60).values()) == [1, 1]
    write("value = 22")
    again = hosts.spawn_procs().spawn("look", looks.Look)
    assert list(again.value.call().get(60).values()) == [22, 22]
    assert len(importers(log)) == 2
    assert list(first.reload().get(60).values()) == [("looks",), ("looks",)]
    assert list(actors.value.call().get(60).values()) == [22, 22]


@pytest.mark.slow
def test_a_rank_that_is_started_again_inherits_all_its_actors_modules(
    hosts, write, log, wait_until
):
    looks, others = write(), write(name="others")
    spec = sm.Supervision(max_restarts=2)
    procs = hosts.slice(hosts=0).spawn_procs({"gpus": 2}, supervise=spec)
    first, second = procs.spawn("look", looks.Look), procs.spawn("other", others.Look)
    before = second.slice(gpus=1).pid.call_one().get(60)
    assert first.pid.call().get(60)
    log.write_text("")
    events: list[str] = []
    procs.on_event(lambda event: events.append(event.kind))
    procs.send_signal(9, rank=1)
    wait_until(lambda: "restarted" in events)
    after = second.slice(gpus=1).pid.call_one().get(60)
    assert after == first.slice(gpus=1).pid.call_one().get(60) != before
    [importer] = set(importers(log))
    assert len(importers(log)) == 2
    assert importer != after


THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
OTHERS = [
    "import _thread, time\n_thread.start_new_thread(time.sleep, (100,))",
    "import socket\nkept = socket.socket()",
    "import subprocess\nchild = subprocess.Popen(['sleep', '100'])",
    "import signal\nsignal.signal(signal.SIGUSR1, print)",
    "local = os.environ.get('LOCAL_RANK', 0)",
    "variables = dict(os.environ)",
    "import random\nnumbers = random.Random()",
    "import tempfile\nplace = tempfile.TemporaryDirectory()",
    "rank = sm.current_rank()",
    "me = sm.context()",
    "if 'RANK' not in os.environ: raise SystemExit(0)",
    "if 'RANK' not in os.environ: os._exit(0)",
    "if 'RANK' not in os.environ: os.abort()",
]


@pytest.mark.parametrize("bodies", [[THREAD], pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_a_module_that_does_not_bear_it_is_imported_by_each_proc(write, log, tmp_path, bodies):
    modules = [write(f"{body}\nvalue = 1", f"odd{n}") for n, body in enumerate(bodies)]
    host = sm.local_hosts(1, tmp_path / "job")
    for module, body in zip(modules, bodies, strict=True):
        log.write_text("")
        procs = host.spawn_procs({"gpus": 2})
        pids = procs.spawn("look", module.Look).pid.call().get(60).values()
        assert sorted(importers(log)[1:]) == sorted(pids), body
        again = host.spawn_procs().spawn("look", module.Look).pid.call().get(60)
        assert importers(log)[3:] == list(again.values()), body  # it is not tried twice
    host.stop()


@pytest.mark.slow
def test_an_import_that_does_not_end_is_left_to_the_procs(write, log, tmp_path, monkeypatch):
    def impatient(module, *args):
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; import slurmmesh.hosts.forkserver as server; "
            f"server.IMPORT_S = 0.3; import {module} as module; module.main()"
        )
        return [sys.executable, "-c", code, *args]

    looks = write("import time\nif 'RANK' not in os.environ: time.sleep(1000)\nvalue = 1")
    monkeypatch.setattr("slurmmesh.hosts.local.python_command", impatient)
    host = sm.local_hosts(1, tmp_path / "job")
    pids = host.spawn_procs({"gpus": 2}).spawn("look", looks.Look).pid.call().get(60).values()
    assert sorted(importers(log)[1:]) == sorted(pids)
    host.stop()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('a broken module')", "a broken module"),
        ("def (", "SyntaxError"),
    ],
)
def test_what_an_import_raises_is_raised_in_the_procs(hosts, write, body, words):
    looks = write(body)
    actors = hosts.spawn_procs().spawn("look", looks.Look)
    with pytest.raises(SupervisionError, match=words):
        actors.pid.call().get(60)


def test_an_actor_whose_module_is_not_there_is_named_with_its_class(hosts, write):
    looks = write()
    Path(str(looks.__file__)).unlink()
    actors = hosts.spawn_procs().slice(hosts=1).spawn("watcher", looks.Look)
    why = r"looks\.Look, .* cannot be loaded here: ModuleNotFoundError: No module named 'looks'"
    with pytest.raises(ActorError, match=rf"^'watcher' rank 1 on \S+ raised .*{why}") as caught:
        actors.initialized.get(60)
    assert isinstance(caught.value.exception, ImportError)
    with pytest.raises(SupervisionError, match=r"^'watcher' does not exist in rank 1 on ") as gone:
        actors.pid.call_one().get(60)
    assert "No module named 'looks'" in str(gone.value)


@pytest.mark.slow
def test_what_an_import_prints_is_in_the_log_of_the_host_once(hosts, write, tmp_path):
    looks = write("print('imported now', flush=True)\nprint('and this')")
    host = hosts.slice(hosts=0)
    actors = host.spawn_procs({"gpus": 3}).spawn("look", looks.Look)
    assert actors.pid.call().get(60)
    hosts.stop()
    text = (tmp_path / "job" / "logs" / f"{hosts.names[0]}.log").read_text()
    assert (text.count("imported now"), text.count("and this")) == (1, 1)


@pytest.mark.parametrize("how", [{"preload": None}, {"bootstrap": os.getpid}])
def test_nothing_is_imported_before_a_bootstrap_or_if_it_is_not_wanted(hosts, write, log, how):
    looks = write()
    actors = hosts.spawn_procs({"gpus": 2}, **how).spawn("look", looks.Look)
    pids = actors.pid.call().get(60).values()
    assert sorted(importers(log)) == sorted(pids)


def test_procs_of_which_nothing_is_heard_start_all_the_same(hosts, wait_until):
    up: list[int] = []
    procs = hosts.spawn_procs({"gpus": 2})
    procs.on_event(lambda event: up.append(event.rank))
    wait_until(lambda: len(up) == 4)
    assert hosts.spawn_procs().initialized.get(60)


class Outer(sm.Actor):
    """Known by its module."""

    class Inner(sm.Actor):
        """Too."""


def test_where_a_class_is_found():
    class Local(sm.Actor):
        pass

    class Renamed(sm.Actor):
        pass

    Renamed.__module__ = "__main__"
    assert home_of(Outer) == home_of(Outer.Inner) == __name__
    assert [home_of(cls) for cls in (Local, Renamed, sm.Actor)] == ["", "", ""]
