"""The command ``python -m slurmmesh.submit``."""

import sys

try:
    from slurmmesh.submit.command import main
except KeyboardInterrupt:  # later on, a Ctrl-C is for ``main``
    sys.exit(130)

sys.exit(main(sys.argv[1:]))
