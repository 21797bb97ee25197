"""The line of a failed job's log that most likely tells why it failed."""

from __future__ import annotations

from pathlib import Path

from slurmmesh.telemetry.wording import one_line

_ERROR = "slurmmesh: error: "
_LOOK_BACK_BYTES = 64 << 10
_LONGEST = 500


def last_words(log: Path) -> str:
    """The last error of slurmmesh in a log, else its last line with text, and which it is.

    Only the end of the log is looked at. Empty if it cannot be read, or holds no text.
    """
    try:
        with open(log, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOOK_BACK_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = ""
    for line in reversed(lines):
        if line.startswith(_ERROR):
            return f"its error: {one_line(line[len(_ERROR) :], _LONGEST)}"
        # After a carriage return a terminal shows only what comes behind it.
        last = last or one_line(line.rstrip().rpartition("\r")[2], _LONGEST).strip()
    return f"its last line: {last}" if last else ""
