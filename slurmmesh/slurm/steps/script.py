"""The file that starts a step: what submitit's batch file is for a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from slurmmesh.slurm.quoting import sh


def submission_script(
    command: Sequence[str], variables: Mapping[str, str], setup: Sequence[str] = ()
) -> bytes:
    """A bash script that becomes ``command``, with variables set and after the lines of setup."""
    lines = ["#!/bin/bash"]
    lines += [f"export {name}={sh(value)}" for name, value in variables.items()]
    lines += setup
    lines.append("exec " + " ".join(map(sh, command)))
    return os.fsencode("\n".join(lines) + "\n")
