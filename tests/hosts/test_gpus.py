"""Procs get their share of what their host sees: on this machine, and under a real Slurm."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.errors import UsageError
from slurmmesh.hosts.masks import CUDA, HIP, ORDINAL, ROCR, VARIABLES
from slurmmesh.lab import Lab

MASKED = {ROCR: "4,5,6,7", HIP: "0,1,3"}
"""Of the machine's GPUs 4, 5 and 7."""

EARLY = """
import os
import slurmmesh as sm

NAMES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
found = {name: os.environ[name] for name in NAMES if os.environ.get(name)}

class Early(sm.Actor):
    @sm.endpoint
    def at_import(self):
        return found
"""


class Look(sm.Actor):
    @sm.endpoint
    def masks(self):
        return {name: os.environ[name] for name in VARIABLES if name in os.environ}

    @sm.endpoint
    def spawn(self, each):
        procs = sm.this_host().spawn_procs({"gpus": 2}, name="inner", gpus_per_proc=each)
        return list(procs.spawn("inner", Look).masks.call().get(60).values())


@pytest.fixture(scope="module")
def hosts(
    outlives_tests: Callable[[Path], AbstractContextManager[None]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[sm.HostMesh]:
    folder = tmp_path_factory.mktemp("gpus")
    (folder / "early_bird.py").write_text(EARLY)
    with pytest.MonkeyPatch.context() as patch, outlives_tests(folder):
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        for name, value in MASKED.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        found = sm.local_hosts(2)
        try:
            yield found
        finally:
            found.stop()


def masks_of(procs: sm.ProcMesh) -> list[dict[str, str]]:
    return list(procs.spawn("look", Look).masks.call().get(60).values())


def test_each_proc_has_one_mask_with_its_share(hosts: sm.HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 3}, name="ones", gpus_per_proc=1)
    assert masks_of(procs) == [{ROCR: device} for device in "457457"]
    procs.stop().get(30)


def test_without_the_argument_procs_see_what_the_host_sees(hosts: sm.HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 1}, name="all")
    assert masks_of(procs) == [MASKED, MASKED]
    procs.stop().get(30)


@pytest.mark.slow
def test_several_for_each_and_none(hosts: sm.HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 1}, name="twos", gpus_per_proc=2)
    assert masks_of(procs) == [{ROCR: "4,5"}] * 2
    none = hosts.spawn_procs({"cpus": 5}, name="none", gpus_per_proc=0)
    assert masks_of(none) == [{ROCR: ""}] * 10
    for each in (procs, none):
        each.stop().get(30)


def test_meshes_of_one_host_share_its_gpus(hosts: sm.HostMesh) -> None:
    first = hosts.spawn_procs({"gpus": 1}, name="first", gpus_per_proc=1)
    rest = hosts.spawn_procs({"gpus": 2}, name="rest", gpus_per_proc=1, first_gpu=1)
    assert masks_of(first) == [{ROCR: "4"}] * 2
    assert masks_of(rest) == [{ROCR: device} for device in "5757"]
    with pytest.raises(UsageError, match=r"it sees 3 GPUs .* and 4 are wanted"):
        hosts.spawn_procs({"gpus": 2}, gpus_per_proc=1, first_gpu=2)
    for wrong in (-1, True, 1.0, None):
        with pytest.raises(UsageError, match="first_gpu is the number of a GPU"):
            hosts.spawn_procs(gpus_per_proc=1, first_gpu=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give gpus_per_proc, too"):
        hosts.spawn_procs(first_gpu=1)
    for each in (first, rest):
        each.stop().get(30)


def test_more_than_there_are_is_refused_before_anything_starts(hosts: sm.HostMesh) -> None:
    with pytest.raises(UsageError, match=r"on host local0: it sees 3 GPUs .* and 4 are wanted"):
        hosts.spawn_procs({"gpus": 2}, name="many", gpus_per_proc=2)
    for wrong in (-1, True, 1.0, "1"):
        with pytest.raises(UsageError, match="gpus_per_proc is a number"):
            hosts.spawn_procs({"gpus": 1}, gpus_per_proc=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"gpus_per_proc or {HIP}"):
        hosts.spawn_procs({"gpus": 1}, env={HIP: "0"}, gpus_per_proc=1)


def test_a_restarted_proc_has_the_same(hosts: sm.HostMesh) -> None:
    rule = sm.Supervision("one_for_one", max_restarts=2, within_s=60)
    how = {"gpus_per_proc": 1, "first_gpu": 1}
    procs = hosts.spawn_procs({"gpus": 2}, name="again", supervise=rule, **how)
    actors = procs.spawn("look", Look)
    before = list(actors.masks.call().get(60).values())
    events: queue.SimpleQueue[sm.ProcEvent] = queue.SimpleQueue()
    procs.on_event(events.put)
    procs.send_signal(signal.SIGKILL, rank=3)
    while events.get(timeout=60).kind != "restarted":
        pass
    assert list(actors.masks.call().get(60).values()) == before
    procs.stop().get(30)


@pytest.mark.slow
def test_a_module_that_reads_a_mask_reads_that_of_its_proc(hosts: sm.HostMesh) -> None:
    import early_bird  # type: ignore[import-not-found]

    procs = hosts.spawn_procs({"gpus": 3}, name="early", gpus_per_proc=1)
    actors = procs.spawn("early", early_bird.Early)  # its module is imported for all, if it may be
    read = list(actors.at_import.call().get(60).values())
    assert read == [{ROCR: device} for device in "457457"]
    procs.stop().get(30)


def test_actors_give_shares_too(hosts: sm.HostMesh) -> None:
    procs = hosts.slice(hosts=1).spawn_procs({"gpus": 1}, name="outer", gpus_per_proc=2)
    actor = procs.spawn("look", Look)
    assert actor.spawn.call_one(1).get(60) == [{ROCR: "4"}, {ROCR: "5"}]
    with pytest.raises(sm.ActorError, match="host local1: it sees 3 GPUs"):
        actor.spawn.call_one(2).get(60)
    procs.stop().get(30)


@pytest.mark.slow
def test_masks_that_contradict_each_other_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROCR, "4,5")
    monkeypatch.setenv(HIP, "0,5")
    monkeypatch.delenv(CUDA, raising=False)
    monkeypatch.delenv(ORDINAL, raising=False)
    hosts = sm.local_hosts(1)
    try:
        with pytest.raises(UsageError, match=f"{ROCR}=4,5 and {HIP}=0,5 are both set"):
            hosts.spawn_procs({"gpus": 1}, gpus_per_proc=1)
        assert masks_of(hosts.spawn_procs()) == [{ROCR: "4,5", HIP: "0,5"}]
    finally:
        hosts.stop()


# ------------------------------------------------------------------ Slurm's own masks

PROGRAM = """
import json, os, sys
import slurmmesh as sm
from slurmmesh.errors import UsageError
from slurmmesh.hosts.masks import VARIABLES


class Look(sm.Actor):
    @sm.endpoint
    def masks(self):
        return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def look(**how):
    procs = sm.this_job().hosts.spawn_procs(name="look", **how)
    return list(procs.spawn("look", Look).masks.call().get(60).values())


found = {"host": look(), "shares": look(per_host={"gpus": 2}, gpus_per_proc=1)}
try:
    look(per_host={"gpus": 3}, gpus_per_proc=1)
except UsageError as error:
    found["refused"] = str(error)
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize(("kind", "variable"), [("mi300x", ROCR), ("h100", CUDA)])
def test_slurms_masks_are_shared_out(
    tmp_path: Path, wait_until: Callable[..., None], kind: str, variable: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "batch.sh").write_text(
        "#!/bin/bash\n"
        f"export SLURMMESH_JOB_FOLDER={tmp_path}/job SLURMMESH_JOB_ID=$SLURM_JOB_ID\n"
        "export SLURMMESH_CLUSTER=slurm SLURMMESH_NODES=2\n"
        f"{sys.executable} -m slurmmesh.hosts.program {tmp_path}/program.py {tmp_path}/found\n"
        f"echo $? >{tmp_path}/code\n"
    )
    with Lab(nodes=2, gpus=4, gpu_type=kind) as lab:
        environ = {k: v for k, v in lab.env().items() if k not in VARIABLES}

        def sbatch(*words: str) -> None:
            command = ["sbatch", "-N2", "--gres=gpu:2", "-o", f"{tmp_path}/out", *words]
            subprocess.run(command, env=environ, cwd=tmp_path, check=True, capture_output=True)

        sbatch("--wrap=sleep 600")  # it has GPUs 0 and 1
        sbatch(str(tmp_path / "batch.sh"))
        wait_until(lambda: (tmp_path / "code").exists() and (tmp_path / "code").read_text())
    assert (tmp_path / "code").read_text() == "0\n", (tmp_path / "out").read_text()
    found = json.loads((tmp_path / "found").read_text())
    assert found["host"] == [{variable: "2,3"}] * 2
    assert found["shares"] == [{variable: "2"}, {variable: "3"}] * 2
    assert f"host node1: it sees 2 GPUs ({variable}=2,3), and 3 are wanted" in found["refused"]
