"""The record of a job's controller, and whether that still lives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.record import JobRecord, read_record, this_process, write_record

WRITES = """
import sys
from pathlib import Path
from slurmmesh.record import this_process, write_record
write_record(Path(sys.argv[1]), {"cluster": "local", **this_process()})
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    yield process
    process.kill()
    process.communicate()


def test_a_controller_lives_until_it_ends(
    controller: subprocess.Popen[str], tmp_path: Path
) -> None:
    record = read_record(tmp_path)
    assert record is not None
    assert record.pid == controller.pid
    assert record.is_alive() is True
    controller.kill()
    # A zombie does nothing more; nobody has waited for it yet.
    while record.is_alive():
        pass
    assert record.is_alive() is False
    controller.communicate()
    assert record.is_alive() is False


def test_another_process_of_the_same_pid_is_not_it() -> None:
    own = JobRecord(**this_process())
    assert own.is_alive() is True
    machine, _, began = own.process.rpartition(":")
    assert replace(own, process=f"{machine}:{int(began) - 1}").is_alive() is False


def test_what_ran_elsewhere_is_not_known_here() -> None:
    own = JobRecord(**this_process())
    boot, _, rest = own.process.partition(":")
    assert replace(own, host="another", process=f"other-boot:{rest}").is_alive() is None
    assert replace(own, process=f"other-boot:{rest}").is_alive() is False  # we were restarted
    other_pids = f"{boot}:pid:[1]:{rest.rpartition(':')[2]}"
    assert replace(own, process=other_pids).is_alive() is None
    assert JobRecord(pid=own.pid).is_alive() is None


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    write_record(tmp_path, {"exit_code": 256 + 3, "argv": ["a b", 1], "started": 1.5, "nodes": 2})
    assert read_record(tmp_path) == JobRecord(3, 1.5, None, 2, argv=("a b", "1"))


@given(
    st.one_of(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
        st.fixed_dictionaries(
            {},
            optional={
                name: st.none() | st.integers() | st.floats() | st.text() | st.lists(st.text())
                for name in ("exit_code", "started", "ended", "nodes", "argv", "pid", "process")
            },
        ),
    )
)
def test_no_record_does_harm(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "job.json").write_text(json.dumps(content))
    record = read_record(folder)
    assert (record is None) == (not isinstance(content, dict))
    if record is not None:
        assert record.is_alive() is not True
