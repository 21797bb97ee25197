"""The command ``python -m slurmmesh.submit``."""

import sys

from slurmmesh.submit.command import main

sys.exit(main(sys.argv[1:]))
