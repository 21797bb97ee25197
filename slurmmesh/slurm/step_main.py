"""What a step runs: submitit's loading of the function, running it and saving its result.

submitit finds the environment of a step by the entry points of an installed slurmmesh; a checkout
that is only on the path has none, so it is made known here.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import cast

from submitit.core import plugins
from submitit.core.job_environment import JobEnvironment
from submitit.core.submission import process_job

from slurmmesh.slurm.steps import StepJobEnvironment


def main() -> None:
    """Run the function of the step that this process is in."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--alone", action="store_true", help="leave signals to the function")
    parser.add_argument("folder")
    options = parser.parse_args()
    environment = StepJobEnvironment()
    environment.supervised = not options.alone
    known = cast("dict[str, JobEnvironment]", plugins.get_job_environments())
    known[environment.name()] = environment
    if environment.supervised:
        # What is needed here is loaded; a user's modules come first for a user's function.
        sys.path.insert(0, os.getcwd())
    process_job(options.folder)
