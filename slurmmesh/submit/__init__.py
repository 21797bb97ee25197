"""``python -m slurmmesh.submit``: hands a program to Slurm, or runs it on this machine."""
