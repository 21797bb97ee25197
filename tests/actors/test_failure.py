"""Exceptions on their way: the object where that works, the user's text always, bounded."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import socket
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.actors.failure import MAX_PICKLED, MAX_SUMMARY, MAX_TEXT, Failure
from slurmmesh.actors.tasks import Tasks
from slurmmesh.errors import ActorError, ExitCause, ProcDied, SupervisionError


class Odd(Exception):
    """Its arguments are not those of its constructor."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"code {code}: {why}")
        self.code = code


class OddFile(FileNotFoundError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "it is gone", path)
        self.path = path


class OddText(UnicodeDecodeError):
    def __init__(self, text: bytes) -> None:
        super().__init__("utf-8", text, 0, 1, "odd text")


class Careful(Exception):
    """Says itself how it is pickled."""

    def __init__(self, *, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __reduce__(self) -> Any:
        return _careful, (self.key,)


def _careful(key: str) -> Careful:
    return Careful(key=key)


def _leave() -> None:
    raise SystemExit(3)


class Hostile(Exception):
    """Raises wherever somebody touches it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise SystemExit("no pickle")


class LeavesOnLoading(Exception):
    def __reduce__(self) -> Any:
        return _leave, ()


def raised(error: BaseException) -> BaseException:
    """``error`` as it is when somebody has raised it."""
    try:
        raise error
    except BaseException as caught:
        return caught


def sent(error: BaseException, **kwargs: Any) -> Failure:
    """The failure as it arrives."""
    failure = Failure.of(raised(error), actor="trainer", rank=3, host="node7", **kwargs)
    return pickle.loads(pickle.dumps(failure))


def received(error: BaseException) -> ActorError:
    rebuilt = sent(error).rebuild()
    assert isinstance(rebuilt, ActorError)
    return rebuilt


def test_an_error_tells_who_where_and_what():
    error = received(ValueError("plain words"))
    assert str(error).startswith("'trainer' rank 3 on node7 raised ValueError: plain words\n")
    assert (error.actor, error.rank, error.host) == ("trainer", 3, "node7")
    assert error.exception_type == "ValueError"
    assert isinstance(error.exception, ValueError)
    assert "in raised" in error.exception_formatted


@pytest.mark.parametrize(
    "error",
    [
        Odd(4, "no luck"),
        OddFile("/there"),
        OddText(b"\xff\xfe"),
        Careful(key="k"),
        KeyError("k"),
        FileNotFoundError(2, "not there", "/here"),
        StopIteration(5),
        subprocess.CalledProcessError(3, ["ls"], "out"),
        socket.gaierror(-2, "no such name"),
        ProcDied(ExitCause("mesh", 1, "host", 7, signal=9)),
        asyncio.CancelledError("stop it"),
        GeneratorExit("generator"),
        KeyboardInterrupt("now"),
        SystemExit(4),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_original_comes_as_it_was_whatever_its_constructor_takes(error):
    twin = received(error).exception
    assert type(twin) is type(error)
    assert (twin.args, str(twin), vars(twin)) == (error.args, str(error), vars(error))
    for name in ("errno", "strerror", "filename", "object", "reason", "value"):
        assert getattr(twin, name, None) == getattr(error, name, None)


def test_a_class_made_in_a_function_travels_by_value():
    class Local(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(a + b)

    assert str(received(Local(1, 2)).exception) == "3"


def test_what_cannot_be_pickled_keeps_its_class_and_text():
    error = RuntimeError("holds a lock\nand more")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    told = received(error)
    assert told.exception is None
    assert told.exception_type == "RuntimeError"
    assert "raised RuntimeError: holds a lock\n" in str(told)
    assert "and more" in told.exception_formatted


def test_an_exception_that_raises_when_it_is_touched_does_no_harm():
    for error in (Hostile(), LeavesOnLoading("its text")):
        told = received(error)
        assert told.exception is None
        assert type(error).__name__ in str(told)
    assert "its text" in str(told)


def test_a_class_that_the_receiver_lacks_leaves_the_text(tmp_path: Path, monkeypatch):
    (tmp_path / "only_there.py").write_text("class Own(Exception):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    failure = sent(importlib.import_module("only_there").Own("no luck"))
    monkeypatch.delitem(sys.modules, "only_there")
    (tmp_path / "only_there.py").unlink()
    importlib.invalidate_caches()
    told = failure.rebuild()
    assert isinstance(told, ActorError)
    assert told.exception is None
    assert told.exception_type == "only_there.Own"
    assert "raised only_there.Own: no luck" in str(told)


def test_a_traceback_begins_with_the_user_s_code():
    async def own() -> None:
        raise ValueError("inside")

    for coroutine in (own(), None):  # the second fails in the runtime: its last frame is left
        tasks = Tasks()
        try:
            tasks.finish(coroutine)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            error.__traceback__ = error.__traceback__.tb_next  # without this test's own frame
            told = Failure.of(error, actor="a", rank=0, host="h")
        finally:
            tasks.close()
        assert told.formatted.count("File ") == 1
        assert coroutine is None or "in own" in told.formatted


def test_causes_contexts_and_notes_are_told():
    try:
        try:
            raise KeyError("the context")
        except KeyError:
            raise OSError("the cause")  # noqa: B904
    except OSError as cause:
        error = ValueError("the error")
        error.__cause__ = cause
    if sys.version_info >= (3, 11):
        error.add_note("the note")
    told = received(error)
    for words in ("the context", "the cause", "the error"):
        assert words in told.exception_formatted
    if sys.version_info >= (3, 11):
        assert "the note" in told.exception_formatted
        assert told.exception.__notes__ == ["the note"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_groups_travel_with_their_members():
    members = [Odd(1, "first"), ExceptionGroup("inner", [KeyError("second")])]  # noqa: F821
    told = received(ExceptionGroup("outer", members))  # noqa: F821
    assert [str(member) for member in told.exception.exceptions] == [
        "code 1: first",
        "inner (1 sub-exception)",
    ]
    for words in ("outer", "first", "inner", "second"):
        assert words in told.exception_formatted


def test_text_and_objects_are_bounded():
    told = sent(ValueError("x" * (MAX_PICKLED + 1)))
    assert told.pickled == b""
    assert len(told.summary) < MAX_SUMMARY + 100
    assert len(told.formatted) < MAX_TEXT + 100
    assert "characters left out" in told.formatted
    assert told.formatted.startswith("Traceback")

    def deep(n: int) -> None:
        shallow(n)

    def shallow(n: int) -> None:
        deep(n + 1)

    try:
        deep(0)
    except RecursionError as error:
        told = sent(error)
    assert len(told.formatted) < MAX_TEXT + 100
    assert isinstance(told.rebuild(), ActorError)

    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert sent(ValueError(nested)).pickled == b""
    while nested:  # taken apart by hand: freeing it at once would recurse
        nested = nested[0]


def test_an_error_that_passes_through_many_actors_does_not_double_at_each():
    error: Exception = ValueError("plain words")
    sizes = []
    for _ in range(6):
        error = received(error)
        sizes.append(len(str(error)))
    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps) < 2 * min(steps)
    assert "plain words" in str(error)


def test_what_ended_an_actor_is_raised_as_it_is():
    assert str(sent(SupervisionError("it is gone"), fatal=True).rebuild()) == "it is gone"
    error = RuntimeError("odd")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    for fatal in (error, SystemExit("leaves")):
        told = sent(fatal, fatal=True).rebuild()
        assert type(told) is SupervisionError
        assert str(fatal) in str(told)


def test_an_error_given_to_a_port_is_raised_itself():
    assert isinstance(sent(KeyError("k"), itself=True).rebuild(), KeyError)
    unpicklable = sent(Hostile(), itself=True).rebuild()
    assert isinstance(unpicklable, ActorError)
    outside = Failure.of(GeneratorExit("x"), actor="", rank=-1, host="", itself=True).rebuild()
    assert str(outside).startswith("the sender raised GeneratorExit: x")


@given(st.text())
def test_any_text_arrives(text: str):
    told = received(ValueError(text))
    assert told.exception.args == (text,)
    assert (text if len(text) < 100 else "") in told.exception_formatted
