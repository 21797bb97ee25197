"""Following a job while it is written: in a pipe, and on a real terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_runs import simulate

from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.narrate import Narrator
from slurmmesh.telemetry.view import follow

PROGRAM = """
import sys
from pathlib import Path
from slurmmesh.telemetry.view import follow

folder = Path(sys.argv[1])
try:
    history = follow(folder, (folder / "done").exists)
    print("followed", history.run.latest.step if history.run.latest else None)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""


def plain(folder: Path, is_done: object, every: float = 1e9, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    follow(folder, is_done, Console(file=file, width=100), progress_every_s=every)  # type: ignore[arg-type]
    file.flush()
    return raw.getvalue().decode(encoding)


def test_a_job_that_left_nothing_is_shown_as_nothing(tmp_path: Path) -> None:
    assert plain(tmp_path / "no" / "folder", lambda: True) == ""


def test_output_is_passed_through_untouched(tmp_path: Path) -> None:
    output = "[bold]no markup[/x] :smile: \x1b[31mred\x1b[0m\n50%\r100%\n" + "w" * 500 + "\n\n\tend"
    (tmp_path / "controller.log").write_text(output, newline="")
    assert plain(tmp_path, lambda: True) == output + "\n"


def test_what_the_terminal_cannot_encode_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "controller.log").write_text("grüße\n", encoding="utf-8")
    simulate(steps=5).write(tmp_path)
    assert plain(tmp_path, lambda: True, encoding="ascii").startswith("gr??e\n")


def test_events_become_lines_and_a_final_table(tmp_path: Path) -> None:
    simulate().write(tmp_path)
    (tmp_path / "controller.log").write_text("hello from the program\n")
    lines = plain(tmp_path, lambda: True, every=0).split("\n")
    assert lines[0] == "hello from the program"
    assert any(line.startswith("[slurmmesh +") and "fault kill" in line for line in lines)
    assert not any("step 60/60" in line for line in lines), "the training had ended before"
    assert any("replica availability" in line for line in lines)


def test_progress_is_told_while_it_trains(tmp_path: Path) -> None:
    simulate(killed=True).write(tmp_path)
    text = plain(tmp_path, lambda: True, every=0)
    assert re.search(r"step 60/60, .*participants 4/4", text)


def test_progress_is_never_of_before_the_line_above_nor_after_the_end() -> None:
    history = RunHistory()
    narrator = Narrator(history)

    def add(t: float, kind: str, **rest: object) -> str | None:
        event = {"t": t, "kind": kind, **rest}
        history.add(event)
        return narrator.tell(event)

    add(100.0, "job_started", nodes=1, cluster="slurm")
    add(101.0, "run_started", replicas=1, steps=9)
    step = {"replica": 0, "loss": 1.0, "participants": 1, "participating": True}
    add(102.0, "step", step=1, committed=True, **step)
    assert add(105.0, "fault", fault="kill", replica=0)
    line = narrator.progress()
    assert (
        line == "[slurmmesh +5.0s] step 1/9, loss 1.0000, participants 1/1, faults 1, recovered 0"
    )
    assert narrator.progress() is None
    add(106.0, "step", step=9, committed=True, **step)
    line = add(107.0, "run_ended", status="finished")
    assert line == "[slurmmesh +7.0s] training finished, final loss 1.0000"
    assert narrator.progress() is None


def test_a_growing_job_is_followed_to_its_end(tmp_path: Path) -> None:
    """What is written before ``is_done`` says True is shown, whenever it was written."""
    folder, done = tmp_path / "job", threading.Event()
    log = simulate(steps=20).events

    def write() -> None:
        folder.mkdir()
        with (
            open(folder / "controller.log", "w") as output,
            open(folder / "events.jsonl", "w") as events,
        ):
            for position, event in enumerate(log):
                text = json.dumps(event) + "\n"
                events.write(text[:7])
                events.flush()
                events.write(text[7:])
                output.write(f"line {position}\n")
                output.flush()
            output.write("without an end")
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        text = plain(folder, done.is_set)
    finally:
        writer.join()
    assert re.findall(r"^line (\d+)$", text, re.M) == [str(n) for n in range(len(log))]
    assert "without an end\n" in text
    assert "job ended with exit code 0" in text


def test_an_error_of_is_done_reaches_the_caller(tmp_path: Path) -> None:
    def broken() -> bool:
        raise LookupError("squeue is gone")

    with pytest.raises(LookupError):
        plain(tmp_path, broken)


class Terminal:
    """A program on a terminal of its own, 100 columns by 40 rows."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.main, self.side = pty.openpty()
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.before = termios.tcgetattr(self.side)
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            stdin=self.side,
            stdout=self.side,
            stderr=self.side,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **environment},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def read_until(self, words: str, deadline_s: float = 60.0) -> None:
        end = time.monotonic() + deadline_s
        while words not in self.text:
            ready, _, _ = select.select([self.main], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{words!r} never came; there was: {self.text[-2000:]!r}"
            self.text += os.read(self.main, 65536).decode(errors="replace")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.main)
        os.close(self.side)


def cursor_is_shown(text: str) -> bool:
    return text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")


def test_on_a_terminal_a_live_view_stays_below_the_output(tmp_path: Path) -> None:
    log = simulate(steps=30)
    log.write(tmp_path)
    (tmp_path / "controller.log").write_text("[bold]hello[/x]\n\x1b[32mgreen\x1b[0m\n")
    with Terminal(tmp_path) as terminal:
        terminal.read_until("running for")
        terminal.read_until("[bold]hello[/x]")
        terminal.read_until("participants 4/4")
        assert not cursor_is_shown(terminal.text)
        with open(tmp_path / "controller.log", "a") as output:
            output.write("more of the program\n")
        terminal.read_until("more of the program")
        (tmp_path / "done").touch()
        terminal.read_until("followed 30")
        assert terminal.process.wait(60) == 0
        assert "replica availability" in terminal.text
        assert cursor_is_shown(terminal.text)
        assert termios.tcgetattr(terminal.side) == terminal.before


@pytest.mark.slow
def test_ctrl_c_gives_the_terminal_back(tmp_path: Path) -> None:
    simulate(steps=30, killed=True).write(tmp_path)
    with Terminal(tmp_path) as terminal:
        terminal.read_until("running for")
        os.write(terminal.main, b"\x03")
        terminal.read_until("interrupted")
        assert terminal.process.wait(60) == 130
        assert cursor_is_shown(terminal.text)
        assert termios.tcgetattr(terminal.side) == terminal.before
        assert "replica availability" not in terminal.text


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    simulate(steps=5).write(tmp_path)
    (tmp_path / "done").touch()
    with Terminal(tmp_path, TERM="dumb") as terminal:
        terminal.read_until("followed 5")
        assert terminal.process.wait(60) == 0
        assert "\x1b" not in terminal.text
        assert "[slurmmesh +" in terminal.text


def test_sigint_in_a_pipe_reaches_the_caller(tmp_path: Path) -> None:
    simulate(steps=5).write(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        while "job ended" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130
        assert rest.endswith("interrupted\n")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
