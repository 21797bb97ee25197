"""What an unknown name was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable


def near(name: str, known: Iterable[str], else_: str, prefix: str = "") -> str:
    """``did you mean X or Y?``; ``else_`` if nothing known is like ``name``.

    ``prefix`` is told before each, and stands in neither.
    """
    import difflib  # only where something is wrong

    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
    return f"did you mean {' or '.join(prefix + each for each in found)}?" if found else else_
