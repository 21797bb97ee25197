"""Jobs whose program runs in an image, by apptainer or pyxis. docs/containers.md tells how.

The controller runs the user's program, so it runs in the image; Slurm's commands, which start the
hosts, are outside. One file for each side:

- ``image``: the command lines and environments that lead into an image; pure;
- ``launcher``: outside, what the batch script becomes: it starts the controller and, for it,
  Slurm's commands;
- ``inside``: in the image, the controller's entry, and the stand-ins for Slurm's commands.
"""
