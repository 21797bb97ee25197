"""All that speaks Slurm: jobs to scripts, calls of its commands, the allocation, steps in it.

It knows nothing of actors. Its parts are imported one by one, so that none pays for another:
``job`` and ``template`` (what is submitted), ``client`` and ``watch`` (the job in the queue),
``allocation`` and ``steps`` (inside the job); ``hostlists``, ``times``, ``states`` and
``environment`` serve them all.
"""
