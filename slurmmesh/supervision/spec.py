"""How a mesh is to be supervised: data, checked before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurmmesh.errors import UsageError

STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")


@dataclass(frozen=True)
class Supervision:
    """What is restarted when ranks of a mesh die, and how often that is tried.

    Attributes:
        strategy: ``one_for_one`` restarts the ranks that died; ``one_for_all`` ends and
            restarts all ranks; ``rest_for_one`` those that died and all ranks after them.
        max_restarts: how many restarts within ``within_s`` are tried. The next failure in
            that time ends the mesh and goes to its owner. 0 means no restart at all.
        within_s: the sliding window, in seconds.

    A restart here is one failure and what it takes to mend it: ranks lost together with
    their host count once.

    Raises:
        UsageError: an unknown strategy, a negative number, or a window that is not above 0.
        TypeError: values of another type.
    """

    strategy: str = "one_for_one"
    max_restarts: int = 10
    within_s: float = 60.0

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            from difflib import get_close_matches  # only where something is wrong

            near = get_close_matches(str(self.strategy), STRATEGIES, n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise UsageError(
                f"no supervision strategy {self.strategy!r}{meant}: use {', '.join(STRATEGIES)}"
            )
        if isinstance(self.max_restarts, bool) or not isinstance(self.max_restarts, int):
            raise TypeError(f"max_restarts must be an integer, not {self.max_restarts!r}")
        if self.max_restarts < 0:
            raise UsageError(f"max_restarts must be 0 or more, not {self.max_restarts}")
        if isinstance(self.within_s, bool) or not isinstance(self.within_s, (int, float)):
            raise TypeError(f"within_s must be a number of seconds, not {self.within_s!r}")
        if not 0 < self.within_s < math.inf:
            raise UsageError(f"within_s must be above 0 s and finite, not {self.within_s}")
