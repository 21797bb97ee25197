"""How figures and untrusted text are put into words, the same on terminals and in reports."""

from __future__ import annotations

import math


def seconds(value: float | None) -> str:
    """``412 ms``, ``3.21 s``, ``4 min 05 s``; ``-`` for None."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{value * 1000:.{0 if value >= 0.00995 else 1}f} ms"
    if value < 59.995:
        return f"{value:.2f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def loss(value: float | None) -> str:
    """Four decimals; ``-`` for None, ``not finite`` for a loss that diverged."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.3e}"


def share(value: float | None) -> str:
    """A share of 1 in percent; ``-`` for None."""
    return "-" if value is None else f"{value * 100:.2f} %"


def things(number: int, thing: str) -> str:
    """``1 host``, ``2 hosts``: for words whose plural only adds an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def one_line(text: str, longest: int = 200) -> str:
    """The text on one line, without what could steer a terminal, cut where it is too long."""
    clean = "".join(char if char.isprintable() else " " for char in text.strip())
    return clean if len(clean) <= longest else clean[: longest - 3] + "..."
