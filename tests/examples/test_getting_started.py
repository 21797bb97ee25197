"""What one learns first: small programs that use nothing but slurmmesh's public names.

Most run as their user would run them: a file, started with ``python``.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import slurmmesh as sm

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a program: its lines, after the imports, in a file of their own."""

    def run(program: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text("import slurmmesh as sm\n" + textwrap.dedent(program))
        done = started([str(script)])
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def started(command: list[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def procs() -> Iterator[sm.ProcMesh]:
    hosts = sm.local_hosts(2)
    yield hosts.spawn_procs({"gpus": 2}, name="guide")
    hosts.stop()


# ------------------------------------------------------------------ programs


def test_a_counter_in_the_programs_own_process(run: Run) -> None:
    done = run("""
        class Counter(sm.Actor):
            def __init__(self, start):
                self.value = start

            @sm.endpoint
            def increment(self):
                self.value += 1

            @sm.endpoint
            def read(self):
                return self.value

        if __name__ == "__main__":
            counter = sm.this_proc().spawn("counter", Counter, start=3)
            counter.increment.broadcast()
            print(counter.read.call_one().get())
    """)
    assert done.stdout == "4\n"


def test_a_mesh_of_counters_of_which_a_slice_counts_further(run: Run) -> None:
    done = run("""
        class Counter(sm.Actor):
            def __init__(self, start):
                self.value = start

            @sm.endpoint
            def increment(self):
                self.value += 1

            @sm.endpoint
            def read(self):
                return self.value

        if __name__ == "__main__":
            procs = sm.this_host().spawn_procs(per_host={"gpus": 4})
            counters = procs.spawn("counters", Counter, 0)
            counters.increment.broadcast()
            counters.slice(gpus=slice(0, 2)).increment.broadcast()
            for point, value in counters.read.call().get():
                print(point, point["gpus"], value)
    """)
    assert done.stdout.splitlines() == [
        "{'gpus': 0/4} 0 2",
        "{'gpus': 1/4} 1 2",
        "{'gpus': 2/4} 2 1",
        "{'gpus': 3/4} 3 1",
    ]


def test_players_of_two_meshes_in_an_async_program(run: Run) -> None:
    done = run("""
        import asyncio

        class Player(sm.Actor):
            def __init__(self, name):
                self.name = f"{name}{sm.current_rank().rank}"
                self.heard = []

            @sm.endpoint
            async def meet(self, others):
                self.other = others.slice(**sm.current_rank())

            @sm.endpoint
            async def serve(self):
                await self.other.hear.call_one(f"ping from {self.name}")

            @sm.endpoint
            async def hear(self, text):
                self.heard.append(f"{self.name} heard {text}")

            @sm.endpoint
            async def all_heard(self):
                return self.heard

        async def main():
            host = sm.this_host()
            async with host.spawn_procs({"gpus": 2}) as near, host.spawn_procs({"gpus": 2}) as far:
                a, b = near.spawn("a", Player, "a"), far.spawn("b", Player, "b")
                await asyncio.gather(a.meet.call(b), b.meet.call(a))
                await a.serve.call()
                await b.slice(gpus=1).serve.call_one()
                print([heard for _, heard in await b.all_heard.call()])
                print([heard for _, heard in await a.all_heard.call()])

        if __name__ == "__main__":
            asyncio.run(main())
    """)
    assert done.stdout.splitlines() == [
        "[['b0 heard ping from a0'], ['b1 heard ping from a1']]",
        "[[], ['a1 heard ping from b1']]",
    ]


@pytest.mark.slow
def test_what_nobody_deals_with_ends_the_program(run: Run) -> None:
    done = run(
        """
        import threading

        class Child(sm.Actor):
            @sm.endpoint
            def refuse(self):
                raise RuntimeError("I would rather not")

        if __name__ == "__main__":
            child = sm.this_host().spawn_procs().spawn("child", Child)
            child.refuse.broadcast()
            threading.Event().wait(60)
        """,
        code=1,
    )
    assert "mesh 'child' has failed on rank 0" in done.stderr
    assert "RuntimeError: I would rather not" in done.stderr


@pytest.mark.slow
def test_the_program_may_deal_with_what_its_actors_do_not(run: Run) -> None:
    done = run("""
        import threading

        class Child(sm.Actor):
            @sm.endpoint
            def refuse(self):
                raise RuntimeError("I would rather not")

        if __name__ == "__main__":
            heard = threading.Event()

            def hook(failure):
                print(type(failure).__name__, failure.mesh_name)
                heard.set()

            sm.unhandled_fault_hook = hook
            child = sm.this_host().spawn_procs().spawn("child", Child)
            child.refuse.broadcast()
            print(heard.wait(60))
    """)
    assert done.stdout == "MeshFailure child\nTrue\n"


@pytest.mark.slow
@pytest.mark.parametrize(("last_line", "code"), [("sys.exit(5)", 5), ("raise KeyError(1)", 1)])
def test_a_hook_that_raises_has_not_dealt_with_it(run: Run, last_line: str, code: int) -> None:
    done = run(
        f"""
        import sys, threading

        class Child(sm.Actor):
            @sm.endpoint
            def refuse(self):
                raise RuntimeError("I would rather not")

        def hook(failure):
            print("told of", failure.mesh_name, flush=True)
            {last_line}

        if __name__ == "__main__":
            sm.unhandled_fault_hook = hook
            child = sm.this_host().spawn_procs().spawn("child", Child)
            child.refuse.broadcast()
            threading.Event().wait(60)
        """,
        code=code,
    )
    assert done.stdout == "told of child\n"


@pytest.mark.slow
def test_the_ranks_output_in_the_program_s_own_folded(run: Run) -> None:
    done = run("""
        import asyncio

        class Talker(sm.Actor):
            @sm.endpoint
            def talk(self):
                print("my rank is", sm.current_rank().rank)

        if __name__ == "__main__":
            procs = sm.this_host().spawn_procs({"gpus": 4}, name="talkers")
            asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=1))
            procs.spawn("talker", Talker).talk.call().get()
    """)
    (line,) = done.stdout.splitlines()
    assert line.endswith("  [3 similar]")
    assert "talkers[" in line
    assert "my rank is" in line


@pytest.mark.slow
def test_the_example_of_actors() -> None:
    done = started([str(ROOT / "examples" / "actors.py")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1. counters: [11, 11, 16, 16], that of gpu 3: 16",
        "2. ball: ['ping', 'pong', 'ping', 'pong']",
        "3. trained on: [6, 6, 6, 6]",
        "4. inferred: first by weights 1, second by weights 1",
        "5. the caller got: FileNotFoundError('b.txt')",
        "   the owner was told of: 'reader'",
    ]


def test_programs_need_nothing_but_the_package_itself() -> None:
    """The example, and this file: no name of an inner module."""
    for path in (ROOT / "examples" / "actors.py", Path(__file__)):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", ())]
            names.append(getattr(node, "module", None) or "")
            assert not [name for name in names if name.startswith("slurmmesh.")], path


# ------------------------------------------------------------------ pieces


class Trainer(sm.Actor):
    @sm.endpoint
    def step(self) -> str:
        return f"{sm.context().message_rank} takes a step"


class Loader(sm.Actor):
    def __init__(self) -> None:
        self.number = 0

    @sm.endpoint
    def example(self) -> str:
        self.number += 1
        return f"{sm.context().actor_instance.rank['gpus']}:{self.number}"


class Learner(sm.Actor):
    def __init__(self, loaders: sm.ActorMesh) -> None:
        self.loader = loaders.slice(**sm.context().actor_instance.rank)

    @sm.endpoint
    def step(self) -> str:
        return self.loader.example.call_one().get()

    @sm.endpoint
    def report(self, port: sm.Port[int]) -> None:
        port.send(sm.current_rank().rank)


class Whereabouts(sm.Actor):
    @sm.endpoint
    def tell(self) -> tuple[str, str, dict[str, int]]:
        here = sm.context()
        return str(here.actor_instance.rank), str(here.message_rank), sm.current_size()


class Refusing(sm.Actor):
    @sm.endpoint
    def greet(self) -> None:
        raise ValueError("I do not want to")

    @sm.endpoint
    async def wave(self) -> str:
        return "hello"


def test_hosts_and_procs_have_named_dimensions(procs: sm.ProcMesh) -> None:
    assert procs.sizes == {"hosts": 2, "gpus": 2}
    trainers = procs.spawn("trainer", Trainer)
    steps = trainers.step.call().get()
    assert steps.item(hosts=1, gpus=0) == "{'hosts': 1/2, 'gpus': 0/2} takes a step"
    assert steps.slice(hosts=0).sizes == {"gpus": 2}


def test_a_mesh_given_to_another_is_called_from_there(procs: sm.ProcMesh) -> None:
    loaders = procs.spawn("loader", Loader)
    learners = procs.spawn("learner", Learner, loaders)
    assert learners.step.call().get().values() == ["0:1", "1:1", "0:1", "1:1"]
    assert learners.slice(hosts=1).step.call().get().values() == ["0:2", "1:2"]


def test_the_rank_of_a_message_is_that_in_the_slice_called(procs: sm.ProcMesh) -> None:
    actors = procs.spawn("whereabouts", Whereabouts)
    assert actors.slice(hosts=1).tell.call().get().item(gpus=1) == (
        "{'hosts': 1/2, 'gpus': 1/2}",
        "{'gpus': 1/2}",
        {"gpus": 2},
    )


def test_an_error_goes_to_who_waits_for_the_answer(procs: sm.ProcMesh) -> None:
    actor = procs.slice(hosts=0, gpus=1).spawn("refusing", Refusing)
    with pytest.raises(sm.ActorError, match="I do not want to") as caught:
        actor.greet.call_one().get()
    assert isinstance(caught.value.exception, ValueError)
    assert (caught.value.actor, caught.value.rank) == ("refusing", 1)
    assert actor.wave.call_one().get() == "hello"  # and it is as well as before


def test_a_port_is_sent_to_actors_which_send_to_it(procs: sm.ProcMesh) -> None:
    port, receiver = sm.Channel.open()
    port.send(-1)
    assert receiver.recv().get(timeout=60) == -1
    learners = procs.spawn("learner", Learner, procs.spawn("loader", Loader))
    learners.report.broadcast(port)

    async def receive() -> list[int]:
        return sorted([await receiver.recv() for _ in range(4)])

    assert asyncio.run(receive()) == [0, 1, 2, 3]


def test_setting_up_a_mesh_can_be_run_as_a_coroutine(procs: sm.ProcMesh) -> None:
    async def set_up() -> None:
        await procs.logging_option(stream_to_client=False)
        await asyncio.create_task(procs.logging_option(stream_to_client=False))

    asyncio.run(set_up())
    asyncio.run(procs.logging_option(stream_to_client=False))
    assert procs.logging_option(stream_to_client=False).get(timeout=60) is None


# ------------------------------------------------------------------ mistakes


class Adder(sm.Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @sm.endpoint
    def add(self, amount: int) -> int:
        return self.value + amount

    def twice(self) -> int:
        return 2 * self.value


def test_the_usual_mistakes_are_told_with_what_to_do(procs: sm.ProcMesh) -> None:
    adders = procs.spawn("adder", Adder)
    host = sm.this_host()
    mistakes: list[tuple[Callable[[], object], type[Exception], str]] = [
        (
            lambda: adders.add(1),
            TypeError,
            r"use adder.add.call\(...\), or .call_one\(...\) for one",
        ),
        (lambda: adders.add.call_one(1), ValueError, "call_one needs a mesh of one, .* slice it"),
        (lambda: adders.add.call(), TypeError, "adder.add: missing a required argument: 'amount'"),
        (
            lambda: adders.twice,
            AttributeError,
            "it has add; mark the method 'twice' with @endpoint",
        ),
        (lambda: adders.value, AttributeError, "Adder has no endpoint 'value'; it has add$"),
        (lambda: procs.spawn("a", Adder, 1, 2), TypeError, "Adder: too many positional arguments"),
        (lambda: procs.spawn("a", int), TypeError, "not a class derived from slurmmesh.Actor"),
        (lambda: procs.spawn(1, Adder), TypeError, "actors need a name, which is text, not 1"),
        (lambda: host.spawn_procs(4), ValueError, 'takes names and sizes: {"gpus": 4}'),
        (lambda: host.spawn_procs({"gpus": 1}, "a"), ValueError, "a name is given as name='a'"),
        (lambda: adders.slice(gpu=0), TypeError, "no dimension 'gpu'; the dimensions are"),
        (lambda: adders.slice(gpus=2), IndexError, "'gpus' goes from 0 to 1"),
        (lambda: adders.add.rref(1), ValueError, "use call"),
    ]
    for mistake, error, text in mistakes:
        with pytest.raises(error, match=text):
            mistake()
    future = adders.slice(hosts=0, gpus=0).add.call_one(1)
    assert re.fullmatch("<Future of adder.add: (not there yet|1)>", repr(future))
    assert future.get(timeout=60) == 1
    assert repr(future) == "<Future of adder.add: 1>"
    host.stop().get()
