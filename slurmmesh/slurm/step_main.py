"""What a step runs: submitit's loading of the function, running it and saving its result.

submitit finds the environment of a step by the entry points of an installed slurmmesh; a checkout
that is only on the path has none, so it is made known here.
"""

from __future__ import annotations

from typing import cast

from submitit.core import plugins
from submitit.core.job_environment import JobEnvironment
from submitit.core.submission import submitit_main

from slurmmesh.slurm.steps import StepJobEnvironment


def main() -> None:
    """Run the function of the step that this process is in."""
    known = cast("dict[str, JobEnvironment]", plugins.get_job_environments())
    known.setdefault(StepJobEnvironment.name(), StepJobEnvironment())
    submitit_main()
