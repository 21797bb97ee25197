"""The command ``python -m slurmmesh.submit``."""

import sys

# "python -m" has put the working folder first, where a user's json.py would take Python's place.
if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.append(sys.path.pop(0))

try:
    from slurmmesh.submit.command import main
except KeyboardInterrupt:  # later on, a Ctrl-C is for ``main``
    sys.exit(130)

sys.exit(main(sys.argv[1:]))
