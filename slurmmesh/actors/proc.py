"""The main loop of a proc: a link to the host, direct links to callers, a thread for each actor.

The first actor runs on the main thread, where signal handlers and most training frameworks want
to be. While it has nothing to do that thread reads the links itself; while it is busy, for hours
perhaps, a thread in the background does (``wire/driver.py``), for the proc's other actors.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from slurmmesh import telemetry
from slurmmesh.actors.addresses import ProcessId
from slurmmesh.actors.bootstrap import run_bootstrap
from slurmmesh.actors.context import Context, set_process_context
from slurmmesh.actors.failure import refusal
from slurmmesh.actors.incoming import Message
from slurmmesh.actors.mailbox import Mailbox
from slurmmesh.actors.messages import (
    Connected,
    DoorOpened,
    OpenDoor,
    ProcWelcome,
    StopProc,
    TakeLink,
    WriteLogs,
)
from slurmmesh.actors.owners import Family, Owner, end_children
from slurmmesh.actors.ports import PORTS
from slurmmesh.actors.remote import ProcRuntime
from slurmmesh.actors.runner import ActorRunner
from slurmmesh.actors.runtime import register
from slurmmesh.actors.stdio import write_from
from slurmmesh.actors.supervising import MAX_STOPPED
from slurmmesh.errors import LinkClosed, MeshStopped, SupervisionError
from slurmmesh.telemetry import Event
from slurmmesh.wire.batches import BatchLink
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import BROKEN, Frame, Kind
from slurmmesh.wire.identity import Revoked, same_user
from slurmmesh.wire.links import Link, cut_off
from slurmmesh.wire.listener import Listener
from slurmmesh.wire.reactor import Reactor, print_error, say

_EARLY_S = 10.0
"""How long a message for an actor that is not there waits for it, in seconds."""
_CHILDREN = 0.6
"""The part of the time a proc is given to stop that it gives to what its actors have spawned."""
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
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End the process, though threads that libraries left behind still run.

    What is registered with ``atexit`` runs before.
    """
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


class _Proc:
    def __init__(self, sock: socket.socket) -> None:
        self._driver = Driver(Reactor(), "slurmmesh-links")
        self._link = BatchLink(
            self._driver.reactor,
            sock,
            authenticate=same_user,
            on_frame=self._on_frame,
            on_batch=lambda _link, _kind, _body: None,
            on_close=self._on_close,
            first=True,
            driver=self._driver,
        )
        self._main: Mailbox[ProcWelcome | ActorRunner | None] = Mailbox(self._driver)
        self._main_is_free = True
        self._runners: dict[int, ActorRunner] = {}
        self._stopped: dict[int, str] = {}
        self._early: dict[int, list[Message]] = {}
        self._threads: list[threading.Thread] = []
        self._seen: dict[Link, int] = {}
        self._ready = threading.Event()
        self._context: Context | None = None
        self._welcome: ProcWelcome | None = None
        self._runtime: ProcRuntime | None = None
        self._door: Listener | None = None

    def run(self, on_welcome: Callable[[ProcWelcome], Any]) -> int:
        self._driver.reactor.call_soon(self._link.start)
        self._driver.start()
        welcome = self._next()
        if not isinstance(welcome, ProcWelcome):
            return 1
        on_welcome(welcome)
        telemetry.set_sink(self._send_event)
        if welcome.bootstrap:
            run_bootstrap(welcome.bootstrap, welcome.region.extent.point(welcome.rank))
        self._link.send(Frame(Kind.HELLO, call=os.getpid(), ranks=(welcome.rank,)))
        self._ready.set()
        try:
            while isinstance(runner := self._next(), ActorRunner):
                runner.run()
                self._driver.reactor.call_soon(self._retire, runner, True)
            for thread in list(self._threads):
                thread.join()
            end_children(Owner(ProcessId(welcome.mesh_id, welcome.rank, welcome.incarnation)))
        finally:
            self._say_last_words()
        return 0

    def _next(self) -> ProcWelcome | ActorRunner | None:
        self._driver.wait(self._main)
        return self._main.take()

    def _say_last_words(self) -> None:
        for link in [self._link, *list(self._seen)]:
            with contextlib.suppress(LinkClosed):
                if isinstance(link, BatchLink):
                    link.flush()
                link.wait_sent(timeout=_LAST_WORDS_S)

    # -- in the reactor's thread ------------------------------------------------------------

    def _on_frame(self, _link: Link, frame: Frame) -> None:
        if frame.kind in (Kind.CALL, Kind.CAST):
            if frame.flags & BROKEN:
                for link in list(self._seen):
                    if link.is_broken:
                        self._begin(link)
                        link.drain()
            self._post(Message(self._link, frame), frame.actor)
        elif frame.kind in (Kind.RESULT, Kind.ERROR, Kind.MERGED, Kind.DELIVERED):
            assert self._runtime is not None
            self._runtime.take(frame)
        elif frame.kind is Kind.PORT:
            assert self._runtime is not None
            if frame.actor == self._runtime.address.incarnation:
                PORTS.deliver(frame.call, frame.body, frame.buffers)
        elif frame.kind is Kind.CREATE:
            self._create(Message(self._link, frame), frame.actor)
        elif frame.kind is Kind.WELCOME:
            self._take_welcome(loads(frame.body, frame.buffers))
        elif frame.kind is Kind.CONTROL:
            message = loads(frame.body)
            if isinstance(message, StopProc):
                for runner in list(self._runners.values()):
                    runner.stop(message.grace_s * _CHILDREN)
                self._main.put(None)
            elif isinstance(message, Revoked):
                self._revoke(message)
            elif isinstance(message, WriteLogs):
                write_from(message.level)
            elif isinstance(message, TakeLink):
                self._take_link(frame.take_socket())
            elif isinstance(message, OpenDoor):
                self._open_door()
            elif isinstance(message, Connected):
                assert self._runtime is not None
                self._runtime.caller.connected(
                    message.mesh, message.rank, message.incarnation, frame.take_socket()
                )

    def _take_link(self, sock: socket.socket) -> None:
        """Be called over a link of its own from now on."""
        link = BatchLink(
            self._driver.reactor,
            sock,
            authenticate=same_user,
            on_frame=self._on_direct_frame,
            on_batch=self._on_direct_batch,
            on_close=lambda link, _reason: self._seen.pop(link, None),
            driver=self._driver,
        )
        self._seen[link] = 0
        # What the host sent before somebody used it is read first.
        self._driver.reactor.call_soon(self._begin, link)

    def _begin(self, link: Link) -> None:
        if not link.peer and not link.closed:
            link.start()

    def _open_door(self) -> None:
        """Be called from other hosts too, from now on."""
        assert self._context is not None
        credentials = self._context.credentials
        if self._door is None and credentials is not None:
            with contextlib.suppress(OSError):
                self._door = Listener(
                    self._driver.reactor,
                    credentials,
                    ("host", "controller"),
                    self._context.host_address,
                    on_open=lambda link: self._seen.setdefault(link, 0),
                    on_frame=self._on_direct_frame,
                    on_close=lambda link, _reason: self._seen.pop(link, None),
                    make=functools.partial(
                        BatchLink, on_batch=self._on_direct_batch, driver=self._driver
                    ),
                )
                self._door.start()
        port = self._door.port if self._door is not None else 0
        self._link.post(Frame(Kind.CONTROL, dumps(DoorOpened(port))[0]))

    def _on_direct_batch(self, link: BatchLink, kind: Kind, body: bytes) -> None:
        if kind is not Kind.CALLS:
            return
        for call in pickle.loads(body):
            number = abs(call[0])
            if number > self._seen[link]:
                self._seen[link] = number
                self._post(Message(link, None, *call), call[1])

    def _on_direct_frame(self, link: Link, frame: Frame) -> None:
        assert isinstance(link, BatchLink)
        if frame.kind is Kind.CALLS:
            self._on_direct_batch(link, frame.kind, bytes(frame.body))
        elif frame.kind in (Kind.CALL, Kind.CAST) and frame.call > self._seen[link]:
            self._seen[link] = frame.call
            self._post(Message(link, frame), frame.actor)

    def _revoke(self, revoked: Revoked) -> None:
        assert self._welcome is not None
        if self._welcome.credentials is not None:
            self._welcome.credentials.revoked.add(revoked)
            cut_off(self._welcome.credentials.revoked)

    def _take_welcome(self, welcome: ProcWelcome) -> None:
        self._welcome = welcome
        self._context = Context(
            message_rank=welcome.region.extent.point(welcome.rank),
            mesh=welcome.mesh,
            proc_rank=welcome.rank,
            host=welcome.host,
            host_address=welcome.host_address,
            incarnation=welcome.incarnation,
            job_folder=Path(welcome.job_folder) if welcome.job_folder else None,
            credentials=welcome.credentials,
        )
        set_process_context(self._context)
        address = ProcessId(welcome.mesh_id, welcome.rank, welcome.incarnation)
        self._runtime = ProcRuntime(
            welcome.job, address, self._driver, self._link, welcome.credentials
        )
        self._runtime.region = welcome.region
        register(self._runtime)
        self._main.put(welcome)

    def _create(self, message: Message, actor: int) -> None:
        assert self._context is not None
        assert self._welcome is not None
        assert self._runtime is not None
        is_first, self._main_is_free = self._main_is_free, False
        driver = self._driver if is_first else None
        report = functools.partial(self._runtime.actor_failed, actor)
        family = Family(Owner(self._runtime.address, actor), report)
        soon = self._driver.reactor.call_soon
        runner = ActorRunner(message, self._context, self._welcome.region, driver, family, soon)
        self._runners[actor] = runner
        for early in self._early.pop(actor, ()):
            runner.post(early)
        if is_first:
            self._main.put(runner)
            return
        thread = threading.Thread(
            target=self._run_in_thread, args=(runner,), name=f"slurmmesh-actor-{actor}"
        )
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for another thread
            del self._runners[actor]
            self._refuse(message, error)
        else:
            self._threads.append(thread)

    def _retire(self, runner: ActorRunner, was_on_main: bool = False) -> None:
        """An actor was stopped, and its thread is free."""
        del self._runners[runner.number]
        self._stopped[runner.number] = runner.name
        if len(self._stopped) > MAX_STOPPED:
            del self._stopped[next(iter(self._stopped))]
        self._main_is_free |= was_on_main
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        runner.retire()

    def _post(self, message: Message, actor: int) -> None:
        runner = self._runners.get(actor)
        if runner is not None:
            runner.post(message)
            return
        if not actor and message.frame is not None:  # a marker, see backlog.read
            self._link.post(replace(message.frame, kind=Kind.RESULT, ranks=(), flags=0))
            return
        if actor in self._stopped:
            self._refuse(message, MeshStopped(f"{self._stopped[actor]!r} was stopped"))
            return
        # It may be on its way, from the controller by the host: messages of others can be faster.
        if actor not in self._early:
            self._early[actor] = []
            self._driver.reactor.call_later(_EARLY_S, lambda: self._refuse_early(actor))
        self._early[actor].append(message)

    def _refuse_early(self, actor: int) -> None:
        for message in self._early.pop(actor, ()):
            self._refuse(message, SupervisionError(f"there is no actor {actor} in this proc"))

    def _refuse(self, message: Message, error: Exception) -> None:
        assert self._context is not None
        if message.is_cast:
            return
        request = message.frame or Frame(Kind.CALL, call=message.number)
        answer = refusal(request, self._context.proc_rank, self._context.host, error)
        with contextlib.suppress(LinkClosed):
            message.link.post(answer)

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
            self._driver.reactor.call_soon(self._retire, runner)
            return
        except SystemExit as error:
            code = _exit_code(error)
        except BaseException:
            print_error()
        self._say_last_words()
        _exit(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    say(str(error.code))
    return 1
