"""The command ``python -m slurmmesh.submit``."""

import sys

from slurmmesh.errors import EXIT_INTERRUPTED

try:
    from slurmmesh.submit.command import main
except KeyboardInterrupt:  # later on, a Ctrl-C is for ``main``
    sys.exit(EXIT_INTERRUPTED)

sys.exit(main(sys.argv[1:]))
