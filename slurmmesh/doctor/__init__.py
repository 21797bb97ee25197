"""Front door ``slurmmesh doctor``: what this node has for a job, what it lacks, and what to do."""
