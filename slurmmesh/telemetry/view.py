"""Follows a job while it runs: its output, and what its event log tells.

On a terminal a live view stays below the program's output; elsewhere (a file, a pipe, a dumb
terminal) plain lines are printed: the program's, untouched, and ours, which begin ``[slurmmesh``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.narrate import Narrator
from slurmmesh.telemetry.panel import final_table, live_view
from slurmmesh.telemetry.summary import summarize
from slurmmesh.telemetry.tail import EventTail, LineTail

_POLL_S = 0.2
_RECENT_LINES = 5
# Lines of the live view that are not replicas: frame, job, progress, counters, loss, heads, recent.
_OTHER_LINES = 10 + _RECENT_LINES


def follow(
    job_folder: Path | str,
    is_done: Callable[[], bool],
    console: Console | None = None,
    progress_every_s: float = 5.0,
) -> RunHistory:
    """Show a job until it is done, then its final table; return its history.

    Neither the folder nor the files in it need exist yet. Ctrl-C ends it with the terminal as it
    was: ``KeyboardInterrupt`` goes to the caller, who decides what becomes of the job.

    Args:
        job_folder: the folder with ``controller.log`` and ``events.jsonl``.
        is_done: asked about five times a second; what was written before it first said True is
            shown, then this returns.
        console: where to show it; standard output if None.
        progress_every_s: seconds between two progress lines where there is no live view.

    Raises:
        OSError: a file is there and cannot be read.
    """
    console = console or Console()
    folder = Path(job_folder)
    if console.is_terminal and not console.is_dumb_terminal:
        show: _Plain | _OnTerminal = _OnTerminal(console)
    else:
        show = _Plain(console, progress_every_s)
    output, events = LineTail(folder / "controller.log"), EventTail(folder / "events.jsonl")
    with show:
        while True:
            # Asked before reading: what a job that is done wrote is then there to be read.
            done = is_done()
            while True:
                show.output(output.read())
                for event in events.read():
                    show.history.add(event)
                    show.told(show.narrator.tell(event))
                show.refresh()
                if output.at_end and events.at_end:
                    break
            if done:
                break
            time.sleep(_POLL_S)
        rest = output.rest()
        if rest:
            show.output([rest])
    show.history.malformed += events.malformed
    if show.history.first_t is not None:
        console.print(final_table(show.history, summarize(show.history)))
    return show.history


class _View:
    """What both ways of showing have in common."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.history = RunHistory()
        self.narrator = Narrator(self.history)


class _Plain(_View):
    """Plain lines. The program's go out as they are, past rich: no markup, no wrapping."""

    def __init__(self, console: Console, progress_every_s: float) -> None:
        super().__init__(console)
        self._every = progress_every_s
        self._next_progress = time.monotonic() + progress_every_s

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.console.file.flush()

    def output(self, lines: list[str]) -> None:
        if lines:
            self._write("\n".join(lines) + "\n")

    def told(self, line: str | None) -> None:
        if line is not None:
            self._write(line + "\n")

    def refresh(self) -> None:
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + self._every
            self.told(self.narrator.progress())
        self.console.file.flush()

    def _write(self, text: str) -> None:
        encoding = self.console.encoding
        self.console.file.write(text.encode(encoding, "replace").decode(encoding))


class _OnTerminal(_View):
    """A live view at the bottom, the program's output scrolling above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._recent: deque[str] = deque(maxlen=_RECENT_LINES)
        # No refresh thread: a view that is drawn by the one loop cannot outlive it.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> None:
        try:
            self._live.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._live.stop()
        finally:
            # A Ctrl-C may have hit stop() itself halfway.
            self.console.show_cursor(True)

    def output(self, lines: list[str]) -> None:
        if lines:
            # Keeps the program's colours; drops what would move the cursor out of its place.
            text = Text("\n").join(Text.from_ansi(line.rstrip("\r")) for line in lines)
            self.console.print(text, soft_wrap=True, highlight=False)

    def told(self, line: str | None) -> None:
        if line is not None:
            self._recent.append(line)

    def refresh(self) -> None:
        rows = max(1, self.console.height - _OTHER_LINES)
        self._live.update(live_view(self.history, self._recent, time.time(), rows), refresh=True)
