"""The main loop of a proc: one link to the host, one thread for each actor.

The link is driven by a thread of its own, so that a proc whose main thread is busy for hours
still takes messages for its other actors. The first actor runs on the main thread, where
signal handlers and most training frameworks want to be.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from slurmmesh import telemetry
from slurmmesh.actors.context import Context, set_process_context
from slurmmesh.actors.messages import Failure, ProcWelcome, StopProc
from slurmmesh.actors.runner import ActorRunner
from slurmmesh.errors import LinkClosed, SupervisionError
from slurmmesh.telemetry import Event
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.links import Link, same_user
from slurmmesh.wire.reactor import Reactor, print_error, say

_LAST_WORDS_S = 5.0
"""How long a proc that stops waits for the host to take its last answers, in seconds."""


def run_proc(sock: socket.socket, on_welcome: Callable[[ProcWelcome], Any]) -> NoReturn:
    """Be a proc until told to stop or the host is gone. Does not return.

    Args:
        sock: a connected unix socket to the host.
        on_welcome: called on the main thread once the proc knows who it is, before anything
            of the user runs.
    """
    code = 1
    try:
        code = _Proc(sock).run(on_welcome)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:
        print_error()
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End the process, though threads that libraries left behind still run."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


class _Proc:
    def __init__(self, sock: socket.socket) -> None:
        self._reactor = Reactor()
        self._link = Link(
            self._reactor,
            sock,
            authenticate=same_user,
            on_frame=self._on_frame,
            on_close=self._on_close,
        )
        self._main: queue.SimpleQueue[ProcWelcome | ActorRunner | None] = queue.SimpleQueue()
        self._runners: dict[int, ActorRunner] = {}
        self._threads: list[threading.Thread] = []
        self._ready = threading.Event()
        self._context: Context | None = None
        self._welcome: ProcWelcome | None = None

    def run(self, on_welcome: Callable[[ProcWelcome], Any]) -> int:
        self._reactor.call_soon(self._link.start)
        threading.Thread(target=self._reactor.run, name="slurmmesh-links", daemon=True).start()
        welcome = self._main.get()
        if not isinstance(welcome, ProcWelcome):
            return 1
        on_welcome(welcome)
        telemetry.set_sink(self._send_event)
        self._link.send(Frame(Kind.HELLO, call=os.getpid(), ranks=(welcome.rank,)))
        self._ready.set()
        try:
            runner = self._main.get()
            if isinstance(runner, ActorRunner):
                runner.run()
            for thread in self._threads:
                thread.join()
        finally:
            self._link.wait_sent(timeout=_LAST_WORDS_S)
        return 0

    # -- in the reactor's thread ------------------------------------------------------------

    def _on_frame(self, _link: Link, frame: Frame) -> None:
        if frame.kind in (Kind.CALL, Kind.CAST):
            self._post(frame)
        elif frame.kind is Kind.CREATE:
            self._create(frame)
        elif frame.kind is Kind.WELCOME:
            self._take_welcome(loads(frame.body, frame.buffers))
        elif frame.kind is Kind.CONTROL and isinstance(loads(frame.body), StopProc):
            for runner in self._runners.values():
                runner.stop()
            self._main.put(None)

    def _take_welcome(self, welcome: ProcWelcome) -> None:
        self._welcome = welcome
        self._context = Context(
            point=welcome.region.extent.point(welcome.rank),
            mesh=welcome.mesh,
            proc_rank=welcome.rank,
            host=welcome.host,
            host_address=welcome.host_address,
            incarnation=welcome.incarnation,
            job_folder=Path(welcome.job_folder) if welcome.job_folder else None,
            credentials=welcome.credentials,
        )
        set_process_context(self._context)
        self._main.put(welcome)

    def _create(self, frame: Frame) -> None:
        assert self._context is not None
        assert self._welcome is not None
        runner = ActorRunner(frame, self._context, self._welcome.region, self._link.send)
        self._runners[frame.actor] = runner
        if len(self._runners) == 1:
            self._main.put(runner)
            return
        thread = threading.Thread(
            target=self._run_in_thread, args=(runner,), name=f"slurmmesh-actor-{frame.actor}"
        )
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for another thread
            del self._runners[frame.actor]
            self._refuse(frame, error)
        else:
            self._threads.append(thread)

    def _post(self, frame: Frame) -> None:
        runner = self._runners.get(frame.actor)
        if runner is not None:
            runner.post(frame)
        elif frame.kind is Kind.CALL:
            self._refuse(frame, SupervisionError(f"there is no actor {frame.actor} in this proc"))

    def _refuse(self, frame: Frame, error: Exception) -> None:
        assert self._context is not None
        rank, host = self._context.proc_rank, self._context.host
        body, _ = dumps(Failure.of(error, actor="", rank=rank, host=host, fatal=True))
        self._link.send(Frame(Kind.ERROR, body, (), frame.call, frame.mesh, ranks=(rank,)))

    def _on_close(self, _link: Link, _reason: str) -> None:
        # The host is gone: end, and with this process all that it started.
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    def _send_event(self, event: Event) -> None:
        # As text: the controller need not have the classes of what an event names.
        text = json.dumps(event, default=str, skipkeys=True)
        with contextlib.suppress(LinkClosed):
            self._link.send(Frame(Kind.EVENT, text.encode()))

    def _run_in_thread(self, runner: ActorRunner) -> None:
        """What comes out of an actor ends its proc, on whichever thread it runs."""
        code = 1
        try:
            self._ready.wait()
            runner.run()
            return
        except SystemExit as error:
            code = _exit_code(error)
        except BaseException:
            print_error()
        self._link.wait_sent(timeout=_LAST_WORDS_S)
        _exit(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    say(str(error.code))
    return 1
