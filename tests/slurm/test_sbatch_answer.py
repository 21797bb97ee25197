"""sbatch wrapped by sites' scripts: each right, and never two jobs for one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.config import Settings
from slurmmesh.errors import SubmitError
from slurmmesh.slurm.client import JobRef, SlurmClient
from slurmmesh.slurm.commands import Answer
from slurmmesh.slurm.sbatch_answer import candidates, job_ids

SETTINGS = Settings(job_root=Path("/jobs"), slurm_timeout_s=20.0, slurm_patience_s=1.0)
REFUSED = 'echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2'
SILENT = 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1'


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("123\n", ["123"]),
        ("123;cluster2\n", ["123;cluster2"]),
        ("*** Welcome to 2026 ***\n\n123\n", ["123"]),
        ("sbatch: loaded plugin 7\n 123;c \nnote: 5 jobs left\n", ["123;c"]),
        ("Submitted batch job 123\n", ["123"]),
        ("[site] Submitted batch job 123 on cluster c1\n", ["123;c1"]),
        ("2026\n123\n2026\n", ["2026", "123"]),
        ("0\n-1\n1.5\n12345678901\n12 3\n٣\n", []),
        ("", []),
    ],
)
def test_finds_what_may_be_an_id(text: str, ids: list[str]) -> None:
    assert [str(ref) for ref in job_ids(text)] == ids


def test_only_one_id_and_success_are_certain() -> None:
    assert candidates(Answer(0, "7\n", "8\n")) == (JobRef("7"), [JobRef("7")])
    assert candidates(Answer(0, "6\n7\n", ""))[0] is None
    assert candidates(Answer(1, "7\n", ""))[0] is None
    assert candidates(Answer(0, "", "7\n")) == (None, [JobRef("7")])


@pytest.fixture
def submit(
    fake: Callable[..., dict[str, str]], squeue: Callable[..., str]
) -> Callable[..., tuple[JobRef, list[str]]]:
    """``submit(sbatch)`` with a queue that has job 123 "mine" and job 50 of somebody else."""

    def make(
        sbatch: str, queue: str = "", settings: Settings = SETTINGS
    ) -> tuple[JobRef, list[str]]:
        table = squeue(
            {"JobID": "50", "State": "RUNNING", "Name": "theirs"},
            {"JobID": "123", "State": "PENDING", "Name": "mine"},
        )
        environ = fake(sbatch=f"echo x >>tries\n{sbatch}", squeue=queue or table, sacct="exit 1")
        warnings: list[str] = []
        ref = SlurmClient(settings, environ).submit("", name="mine", warn=warnings.append)
        return ref, warnings

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sbatch", "ref", "warning"),
    [
        ("echo 123", "123", ""),
        ("echo '*** 5 nodes down ***'; echo 123; echo bye", "123", ""),
        ("echo 'sbatch: warning: old' >&2; echo 123", "123", "sbatch: warning: old"),
        ("echo 50; echo 123", "123", ""),
        ("echo 123; echo 50; echo 2026", "123", ""),
        ("echo Submitted batch job 123", "123", ""),
        ("echo 123; exit 1", "123", "sbatch ended with code 1, but Slurm has the job"),
        ("echo 123; kill -9 $$", "123", "sbatch was killed by SIGKILL, but Slurm has the job"),
        ("echo 123; exit 137", "123", "sbatch was killed by SIGKILL, but Slurm has the job"),
        ("echo 123 >&2", "123", "123"),
        ("sleep 0.5; echo 123", "123", ""),
        ("echo 123; exec sleep 60", "123",
         "sbatch took too long and was killed, but Slurm has the job"),
        ("echo '123;far'", "123;far", ""),
        # The queue has neither: sbatch's own word.
        ("echo 2026; echo 124", "124", ""),
    ],
)  # fmt: skip
def test_the_job_is_found(
    submit: Callable[..., tuple[JobRef, list[str]]], tmp_path: Path, sbatch: str, ref: str,
    warning: str,
) -> None:  # fmt: skip
    settings = Settings(Path("/jobs"), slurm_timeout_s=3.0, slurm_patience_s=1.0)
    found, warnings = submit(sbatch, settings=settings)
    assert str(found) == ref
    assert warnings[:1] == ([warning] if warning else [])
    assert (tmp_path / "bin/tries").read_text() == "x\n"


@pytest.mark.parametrize(
    ("sbatch", "told"),
    [
        (f"{REFUSED}; exit 1", "you may not use this QOS"),
        (f"{REFUSED}; exit 0", "you may not use this QOS"),
        (f"echo 50; {REFUSED}; exit 1", "you may not use this QOS"),
        ("echo 50; echo 'no coffee left' >&2; exit 1", "Slurm refused the job"),
        ("exit 1", "ended with code 1 without an answer, so the job may or may not be"),
        ("exit 0", "ended well but told no job id, so the job may or may not be"),
        ("echo 'be happy'", "ended well but told no job id, so the job may or may not be"),
        ("kill -9 $$", "was killed by SIGKILL without an answer, so the job may or may not"),
        ("echo hello; exit 143", "was killed by SIGTERM without an answer, so the job may or"),
        ("echo 'submission broken' >&2; exit 1", "Slurm refused the job"),
    ],
)
def test_there_is_no_job_or_nobody_knows(
    submit: Callable[..., tuple[JobRef, list[str]]], tmp_path: Path, sbatch: str, told: str
) -> None:
    with pytest.raises(SubmitError, match=told) as caught:
        submit(sbatch)
    assert caught.value.advice
    assert ("may or may not" in caught.value.message) == ("squeue --me" in caught.value.advice)
    assert (tmp_path / "bin/tries").read_text() == "x\n"


@pytest.mark.parametrize(
    ("sbatch", "ref"), [("echo 50; echo 123", "123"), ("echo 123; exit 1", ""), ("exit 1", "")]
)
def test_squeue_does_not_answer(
    submit: Callable[..., tuple[JobRef, list[str]]], sbatch: str, ref: str
) -> None:
    if ref:
        assert submit(sbatch, SILENT)[0] == JobRef(ref)
        return
    with pytest.raises(SubmitError, match="may or may not be in the queue"):
        submit(sbatch, SILENT)


@pytest.mark.slow
def test_a_refusal_needs_no_squeue(submit: Callable[..., tuple[JobRef, list[str]]]) -> None:
    with pytest.raises(SubmitError, match="you may not use this QOS"):
        submit(f"echo 50; {REFUSED}; exit 1", SILENT)
