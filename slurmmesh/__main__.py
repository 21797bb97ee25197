"""``python -m slurmmesh``: the console command."""

import sys

from slurmmesh.cli import main

if __name__ == "__main__":
    sys.exit(main())
