"""Functions as steps of the allocation that a program is in: a submitit plugin.

submitit's own pickles, paths and results are used; ``AutoExecutor(folder, cluster="slurmmesh")``
finds it by its entry points. docs/steps.md tells how to use it. One file for each concern:

- ``parameters``: what a step asks for, as options of srun; ``script``: the file that starts it;
- ``executor``: pickles and submits; ``runner``: starts steps, counts them, starts them again;
- ``job``: what a user holds; ``elsewhere``: the same for a step that another process started;
- ``inside``: the step's own view; ``interruptions``: what it does when it gets a signal;
- ``paths``: the files of a step; ``endings``: how it ended, from srun's words.
"""

from slurmmesh.slurm.steps.endings import StepDied
from slurmmesh.slurm.steps.executor import StepExecutor
from slurmmesh.slurm.steps.inside import StepJobEnvironment
from slurmmesh.slurm.steps.job import StepJob
from slurmmesh.slurm.steps.parameters import StepParameters

__all__ = ["StepDied", "StepExecutor", "StepJob", "StepJobEnvironment", "StepParameters"]
