"""The example that users copy: its model, its data, and whole runs of it."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_llama.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_llama", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_llama"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


llama = load()
SHAPE = llama.Shape(dim=24, layers=2, heads=6, kv_heads=2, context=16)


@pytest.fixture(scope="module")
def text():
    return llama.Text(seed=1, length=16, batch_size=8)


# ---------------------------------------------------------------------------- the data


@functools.cache
def made(seed, time=0):
    """A text; one of each ``time`` is made anew."""
    return llama.Text(seed, 64, 4)


@given(seed=st.integers(0, 5), number=st.integers(0, 10_000))
def test_a_batch_depends_on_seed_and_number_only(seed, number):
    first = made(seed).batch(number)
    again = made(seed, time=1).batch(number)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@given(st.integers(1, 8), st.integers(1, 6), st.data())
def test_whoever_trains_on_a_batch_no_piece_is_read_twice(replicas, steps, data):
    """Batches 0 to n - 1 are disjoint, so any split of the numbers over replicas is."""
    shared = made(seed=1)
    numbers = data.draw(st.permutations(range(replicas * steps)))
    places = [
        place for number in numbers for place in shared.train[number * 4 : number * 4 + 4].tolist()
    ]
    assert len(set(places)) == len(places)


def test_one_pass_reads_everything_but_what_is_held_out(text):
    train, test = set(text.train.tolist()), set(text.test.tolist())
    assert not train & test
    assert len(train) + len(test) == len(text.pieces)
    assert len(test) == text.HELD_OUT


def test_after_the_last_piece_comes_the_first(text):
    count = len(text.train)
    last = -(-count // text.batch_size) - 1
    inputs, _ = text.batch(last)
    assert inputs.shape == (8, 16)
    wrapped = (last + 1) * text.batch_size - count
    expected = text.pieces[text.train[:wrapped]].long()[:, :-1]
    assert torch.equal(inputs[8 - wrapped :], expected)


def test_targets_are_the_next_bytes(text):
    inputs, targets = text.batch(3)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.dtype == torch.int64
    assert int(inputs.max()) < 256


def test_the_text_is_the_standard_library():
    text = llama.Text(seed=0, length=64, batch_size=1)
    assert len(text.pieces) > 10_000
    sample = bytes(text.pieces[:2000].flatten().tolist()).decode("utf-8", errors="replace")
    assert "def " in sample


# ---------------------------------------------------------------------------- the model


def test_a_token_never_sees_those_after_it():
    torch.manual_seed(0)
    model = llama.Llama(SHAPE)
    tokens = torch.randint(0, 256, (2, 16))
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_rotation_makes_attention_depend_on_distance_only():
    torch.manual_seed(0)
    attention = llama.Attention(SHAPE)
    query, key = torch.randn(4), torch.randn(4)

    def score(at: int, other: int) -> torch.Tensor:
        def turned(x: torch.Tensor, place: int) -> torch.Tensor:
            return llama.rotate(x.view(1, 1, 1, 4), attention.angles[place : place + 1]).flatten()

        return turned(query, at) @ turned(key, other)

    torch.testing.assert_close(score(3, 1), score(9, 7))
    assert not torch.isclose(score(3, 1), score(3, 2))


def test_key_heads_are_shared():
    attention = llama.Attention(SHAPE)
    assert attention.queries.weight.shape == (24, 24)
    assert attention.keys.weight.shape == (8, 24)


def test_it_begins_as_a_uniform_guess():
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (4, 16))
    loss = llama.loss_of(llama.Llama(llama.Shape())(tokens), tokens)
    assert loss.item() == pytest.approx(5.545, abs=0.1)  # ln 256


# ---------------------------------------------------------------------------- the program


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--dim", "48", "--layers", "1", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
    )


def summary(folder: Path) -> dict:
    return json.loads((folder / "out" / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [["--steps", "100"], ["--steps", "100", "--sync-every", "10", "--batch-size", "8"]],
    ids=["ddp", "diloco"],
)
def test_kills_hardly_change_the_loss(tmp_path, mode):
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    assert run(calm, *mode, "--out", "out").returncode == 0
    done = run(disturbed, *mode, "--faults", "kill@1s", "--out", "out")
    assert done.returncode == 0, done.stderr
    before, after = summary(calm), summary(disturbed)
    assert after["status"] == "finished"
    assert after["faults"] >= 1
    assert after["recovered"] == after["faults"]
    assert after["full_restarts"] == 0
    assert after["steps"] == before["steps"]
    assert after["final_loss"] < 0.8 * after["first_loss"]
    assert after["final_loss"] == pytest.approx(before["final_loss"], rel=0.05)
    assert (disturbed / "out" / "report.html").stat().st_size > 0
    held_out = next(line for line in done.stdout.splitlines() if "held-out loss" in line)
    assert len(set(held_out.split(": ")[1].split(", "))) == 1  # all replicas ended equal


# Runs a script once for each list of arguments, in forks of one process that has imported torch.
FORKS = """
import json, os, runpy, sys
import torch
script, *runs = sys.argv[1:]
for number, arguments in enumerate(map(json.loads, runs)):
    pid = os.fork()
    if pid == 0:
        sys.argv = [script, *arguments]
        for fd, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_WRONLY | os.O_CREAT), fd)
        runpy.run_path(script, run_name="__main__")
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_bad_arguments_are_refused_in_one_line(tmp_path):
    refused = [
        (["--steps", "10", "--sync-every", "3"], "multiple of --sync-every"),
        (["--steps", "0"], "positive multiple"),
        (["--faults", "kil@3s"], "did you mean 'kill'"),
        (["--faults", "kill@3s", "--replicas", "1"], "at least 2 replicas"),
        (["--replicas", "0"], "at least 1"),
    ]
    runs = [json.dumps(arguments) for arguments, _ in refused]
    command = [sys.executable, "-c", FORKS, str(SCRIPT), *runs]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=150)
    assert done.stdout.split() == ["2"] * len(refused)
    for number, (_, words) in enumerate(refused):
        said = (tmp_path / f"{number}.err").read_text()
        assert words in said.strip().splitlines()[-1]
        assert "Traceback" not in said


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_told_before_training(tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    done = run(tmp_path / "run", "--out", str(blocked / "report"))
    assert done.returncode == 1
    assert "ReportError: cannot make the folder" in done.stderr.strip().splitlines()[-1]
    assert not list((tmp_path / "run").glob("slurmmesh-jobs/*/report.html"))
    logs = list((tmp_path / "run").glob("slurmmesh-jobs/*/events.jsonl"))
    assert not any("run_started" in log.read_text() for log in logs)


def test_without_torch_it_says_what_to_install(tmp_path):
    blocked = (
        "import sys, runpy, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "training needs torch: first the torch wheel for your platform" in done.stderr
    assert "pip install 'slurmmesh[train]'" in done.stderr
    assert not (tmp_path / "slurmmesh-jobs").exists()
