"""What ranks write: in the host's file, and in the controller's output where that is asked for."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import logging
import os
import queue
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.errors import ProcDied, SupervisionError, UsageError
from slurmmesh.folders import files_of
from slurmmesh.jobs.log_files import LogFiles
from slurmmesh.jobs.log_lines import Selection


class Talker(sm.Actor):
    @sm.endpoint
    def say(self, text):
        print(text)

    @sm.endpoint
    def complain(self, text):
        print(text, file=sys.stderr)

    @sm.endpoint
    def log(self, level, text):
        logging.getLogger("talker").log(level, text)

    @sm.endpoint
    def speak_c(self):
        libc = ctypes.CDLL(None)
        libc.puts(b"from libc's buffer")
        libc.fflush(None)
        os.write(1, b"half ")
        os.write(1, b"a line\n")
        os.write(2, b"from the descriptor\n")

    @sm.endpoint
    def die_in_the_middle_of_a_line(self):
        os.write(2, b"whole\nlast wo")
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    @sm.endpoint
    def flood(self, lines):
        for number in range(lines):
            print(f"flood {number} {'x' * 100}")

    @sm.endpoint
    def pid(self):
        return os.getpid()


class Broken(sm.Actor):
    def __init__(self):
        print("what led to it", file=sys.stderr)
        raise RuntimeError("no such data set")

    @sm.endpoint
    def pid(self):
        return os.getpid()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def hosts(folder: Path, outlives_tests) -> Iterator[sm.HostMesh]:
    with outlives_tests(folder):
        made = sm.local_hosts(2, folder)
        made.spawn_procs(name="first").logging_option().get(20)
        yield made
        made.stop()


@pytest.fixture
def start_hosts() -> Iterator[Callable[..., sm.HostMesh]]:
    """``local_hosts`` of this test alone, ended with it."""
    with contextlib.ExitStack() as stack:

        def start(*args: object) -> sm.HostMesh:
            hosts = sm.local_hosts(*args)  # type: ignore[arg-type]
            stack.callback(hosts.stop)
            return hosts

        yield start


@pytest.fixture
def shows(capsys, wait_until) -> Callable[..., tuple[list[str], list[str]]]:
    """``shows(count)``: waits until so many lines are shown; those of stdout and of stderr."""
    out, err = "", ""

    def wait(count: int) -> tuple[list[str], list[str]]:
        def there() -> bool:
            nonlocal out, err
            more = capsys.readouterr()
            out, err = out + more.out, err + more.err
            return sum(map(weight, shown(out) + shown(err))) >= count

        wait_until(there)
        return shown(out), shown(err)

    return wait


def weight(line: str) -> int:
    """For how many lines a shown one stands."""
    similar = re.search(r"  \[(\d+) similar\]$", line)
    return 1 + int(similar[1]) if similar else 1


def said(folder: Path, mesh: str) -> collections.Counter[tuple[int, str]]:
    """The lines of a mesh's ranks in the hosts' logs, each with its rank."""
    pattern = re.compile(r"\d\d:\d\d:\d\d\.\d{3} " + mesh + r"\[(\d+)\] \| (.*)")
    found: collections.Counter[tuple[int, str]] = collections.Counter()
    for log in (folder / "logs").glob("*.log"):
        for path in files_of(log):
            for line in path.read_text().splitlines():
                if match := pattern.fullmatch(line):
                    found[int(match[1]), match[2]] += 1
    return found


def shown(text: str) -> list[str]:
    """Streamed lines without their times."""
    return [line[13:] for line in text.splitlines() if re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line)]


def test_the_file_has_all_that_is_written_also_from_c_and_before_a_kill(hosts, folder):
    procs = hosts.spawn_procs({"gpus": 1}, name="c")
    talkers = procs.spawn("talker", Talker)
    talkers.speak_c.call().get(20)
    talkers.log.call(logging.WARNING, "a record").get(20)
    with pytest.raises(ProcDied, match="last wo") as caught:
        talkers.slice(hosts=1).die_in_the_middle_of_a_line.call_one().get(20)
    assert caught.value.cause.stderr_tail[-2:] == ("whole", "last wo")
    procs.stop().get(20)
    lines = said(folder, "c")
    for rank in range(2):
        for text in ("from libc's buffer", "half a line", "from the descriptor", "a record"):
            assert lines[rank, text] == 1, (rank, text)
    assert lines[1, "whole"] == lines[1, "last wo"] == 1
    assert not any("\x1e" in text for _, text in lines)


def test_similar_lines_of_all_ranks_are_one_with_their_number(hosts, folder, shows):
    procs = hosts.spawn_procs({"gpus": 2}, name="many")
    talkers = procs.spawn("talker", Talker)
    procs.logging_option(aggregate_window_sec=0.5).get(20)
    talkers.say.call("loaded 12 GB").get(20)
    talkers.complain.call("careful").get(20)
    out, err = shows(8)
    assert sum(map(weight, out)) == sum(map(weight, err)) == 4
    assert len(out) < 4  # two windows at most, if the first ended in between
    assert re.fullmatch(r"many\[\d\] \| loaded 12 GB(  \[\d similar\])?", out[0])
    assert said(folder, "many") == {
        (rank, text): 1 for rank in range(4) for text in ("loaded 12 GB", "careful")
    }
    procs.stop().get(20)


def test_only_chosen_ranks_and_levels_are_shown(hosts, folder, shows):
    procs = hosts.spawn_procs({"gpus": 2}, name="some")
    talkers = procs.spawn("talker", Talker)
    talkers.log.call(logging.INFO, "before: not written").get(20)
    procs.slice(gpus=0).logging_option(aggregate_window_sec=None).get(20)
    procs.slice(hosts=1, gpus=1).logging_option(True, None, logging.ERROR).get(20)
    talkers.log.call(logging.INFO, "informed").get(20)
    talkers.log.call(logging.ERROR, "failed").get(20)
    talkers.say.call("printed").get(20)
    talkers.complain.call("on stderr").get(20)
    shows(10)
    procs.logging_option(stream_to_client=False).get(20)
    talkers.say.call("no more").get(20)
    procs.stop().get(20)
    out, err = shows(10)
    assert sorted(out) == ["some[0] | printed", "some[2] | printed"]
    each = ["failed", "informed", "on stderr"]
    assert sorted(err) == [
        *(f"some[0] | {text}" for text in each),
        *(f"some[2] | {text}" for text in each),
        "some[3] | failed",
        "some[3] | on stderr",
    ]
    lines = said(folder, "some")
    assert {rank for rank, text in lines if text == "informed"} == {0, 2}  # 3 has errors only
    assert sum(lines[rank, "no more"] for rank in range(4)) == 4
    assert not any(text.startswith("before") for _, text in lines)


def test_a_rank_that_is_started_again_is_shown_again(hosts, shows):
    procs = hosts.slice(hosts=0).spawn_procs(name="again", supervise=sm.Supervision("one_for_one"))
    events: queue.Queue[str] = queue.Queue()
    procs.on_event(lambda event: events.put(event.kind))
    talker = procs.spawn("talker", Talker)
    procs.logging_option(aggregate_window_sec=0).get(20)
    with pytest.raises(ProcDied):
        talker.die_in_the_middle_of_a_line.call_one().get(20)
    while events.get(timeout=20) != "restarted":
        pass
    talker.log.call_one(logging.INFO, "back").get(20)
    assert shows(3)[1] == ["again[0] | whole", "again[0] | last wo", "again[0] | back"]
    procs.stop().get(20)


def test_errors_have_the_lines_of_the_first_failure(hosts, folder):
    procs = hosts.slice(hosts=0).spawn_procs(name="broken")
    broken = procs.spawn("broken", Broken)
    with pytest.raises(SupervisionError, match="no such data set") as caught:
        broken.pid.call().get(20)
    assert "Traceback" in str(caught.value)
    procs.stop().get(20)
    lines = said(folder, "broken")
    assert lines[0, "what led to it"] == lines[0, "RuntimeError: no such data set"] == 1


def test_without_a_folder_what_is_shown_is_not_shown_twice(start_hosts, capfd):
    hosts = start_hosts(1)
    procs = hosts.spawn_procs(name="t")
    talkers = procs.spawn("talker", Talker).slice(hosts=0)
    talkers.say.call_one("as it came").get(20)
    procs.logging_option(aggregate_window_sec=600).get(20)
    talkers.say.call_one("twice 1").get(20)
    talkers.say.call_one("twice 2").get(20)
    hosts.stop()  # shows what is held
    out, err = capfd.readouterr()
    assert shown(out) == ["t[0] | twice 1  [1 similar]"]
    assert shown(err) == ["t[0] | as it came"]


@pytest.mark.slow
def test_a_flood_loses_nothing_in_the_file_and_tells_what_was_not_shown(
    start_hosts, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("SLURMMESH_LOG_MAX_MB", "1")
    monkeypatch.setenv("SLURMMESH_LOG_KEEP", "1000")
    hosts = start_hosts(1, tmp_path)
    assert capsys.readouterr().err == f"slurmmesh: logs in {tmp_path}\n"
    procs = hosts.spawn_procs({"gpus": 2}, name="t")
    talkers = procs.spawn("talker", Talker).slice(hosts=0)
    procs.logging_option(aggregate_window_sec=600).get(20)
    count = 100_000
    flood = talkers.slice(gpus=0).flood.call_one(count)
    other = talkers.slice(gpus=1)
    calls = 0
    while not flood.done():
        other.pid.call_one().get(20)
        calls += 1
    flood.get(20)
    other.say.call_one("heard").get(20)
    hosts.stop()
    out, err = capsys.readouterr()
    assert "t[1] | heard" in shown(out)
    [first] = [line for line in shown(out) if line.startswith("t[0] |")]
    folded = re.fullmatch(r"t\[0\] \| flood 0 x+  \[(\d+) similar\]", first)
    [told] = shown(err)
    dropped = re.fullmatch(
        r"t\[0\] \| \((\d+) more lines came too fast to be shown here; all are in .*/logs\)", told
    )
    assert 1 + int(folded[1]) + int(dropped[1]) == count
    assert calls > 1
    assert len(files_of(tmp_path / "logs" / "local0.log")) > 5
    numbers = [
        int(line.rpartition(b"flood ")[2].split()[0])
        for line in LogFiles(tmp_path, Selection(ranks=frozenset({0}))).read()
    ]
    assert numbers == list(range(count))


@pytest.mark.parametrize(
    "options",
    [
        {"aggregate_window_sec": -1},
        {"aggregate_window_sec": float("nan")},
        {"aggregate_window_sec": "3"},
        {"aggregate_window_sec": True},
        {"level": "INFO"},
        {"level": -1},
        {"level": True},
    ],
)
def test_what_is_no_option_is_refused(options: dict) -> None:
    procs = sm.ProcMesh(None, 1, "t", sm.Region(sm.Extent.of({})), None)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        procs.logging_option(**options)
