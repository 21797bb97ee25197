"""The report: complete, by itself, safe, and whole or not at all."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import simulate
from wild_events import events

from slurmmesh.errors import ReportError, UsageError
from slurmmesh.telemetry import page, plots, report
from slurmmesh.telemetry.history import fold
from slurmmesh.telemetry.summary import summarize

needs_plots = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
PNG = b"\x89PNG\r\n\x1a\n"


class Page(HTMLParser):
    """The page as a browser would see it: text, links, and whether every tag is closed."""

    VOID = {"meta", "source", "img", "br", "link", "hr"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.links, self.tags, self._open = "", [], [], []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "srcset", "href", "action")]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data


def in_words(html: str) -> str:
    return re.sub(r"\s+", " ", Page(html).text)


@needs_plots
def test_a_report_has_its_page_its_figures_and_its_log(tmp_path: Path) -> None:
    truth = simulate()
    log = truth.write(tmp_path / "job")
    path = report.write_report(log, tmp_path / "out" / "deep")
    assert path == tmp_path / "out" / "deep" / "report.html"
    assert sorted(os.listdir(path.parent)) == ["events.jsonl", "report.html", "summary.json"]
    assert (path.parent / "events.jsonl").read_bytes() == log.read_bytes()
    summary = json.loads((path.parent / "summary.json").read_text())
    assert summary == summarize(fold(truth.events))
    text = in_words(path.read_text())
    for words in ("Job synthetic-0", "Participants over time", "Loss over steps", "SIGKILL",
                  "3 of 3", "Where the time of a recovery goes", "rendezvous"):  # fmt: skip
        assert words in text


@pytest.mark.slow
@needs_plots
def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    log = simulate().write(tmp_path / "job")
    html = report.write_report(log, tmp_path).read_text()
    parsed = Page(html)
    assert len(parsed.links) == 9
    assert all(link.startswith("data:image/png;base64,") for link in parsed.links)
    assert "script" not in parsed.tags
    assert not re.search(r"https?://|@import|url\(", html)


@pytest.mark.slow
def test_one_of_a_thing_is_told_as_one(tmp_path: Path) -> None:
    log = simulate(replicas=1, steps=5, fault_every=None)
    log.events[0]["nodes"] = 1
    log.write(tmp_path)
    text = in_words(report.write_report(tmp_path, tmp_path).read_text())
    assert "1 replica " in text
    assert ", 1 node" in text
    assert not re.search(r"\b1 (replicas|nodes|hosts)\b", text)


@pytest.mark.slow
def test_a_report_may_go_beside_its_log(tmp_path: Path) -> None:
    log = simulate(steps=10).write(tmp_path)
    before = log.stat()
    report.write_report(tmp_path, tmp_path)
    report.write_report(log, tmp_path)
    assert log.stat().st_ino == before.st_ino
    assert sorted(os.listdir(tmp_path)) == ["events.jsonl", "report.html", "summary.json"]


@pytest.mark.slow
def test_the_baseline_stands_beside_the_run(tmp_path: Path) -> None:
    job = simulate(seed=4).write(tmp_path / "job")
    simulate(seed=4, fault_every=None).write(tmp_path / "base")
    text = in_words(report.write_report(job, tmp_path / "a", tmp_path / "base").read_text())
    assert "The run beside its no-fault baseline" in text
    assert re.search(r"final loss ?\d\.\d{4} ?\d\.\d{4} ?[+-]\d+\.\d %", text)
    assert "Not the same training" not in text


@pytest.mark.slow
def test_a_report_made_again_keeps_its_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(seed=4, steps=20).write(tmp_path / "job")
    base = simulate(seed=4, steps=20, fault_every=None).write(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    report.write_report("job", "job", "base")
    monkeypatch.chdir("/")
    for _ in range(2):
        assert report.main([str(tmp_path / "job")]) == 0
        text = in_words((tmp_path / "job" / "report.html").read_text())
        assert "The run beside its no-fault baseline" in text
    assert capsys.readouterr().err == ""
    base.unlink()
    assert report.main([str(tmp_path / "job")]) == 0
    assert f"the baseline {tmp_path / 'base'} is gone" in capsys.readouterr().err
    text = in_words((tmp_path / "job" / "report.html").read_text())
    assert "The run beside its no-fault baseline" not in text


@pytest.mark.slow
def test_a_summary_alone_can_be_the_baseline(tmp_path: Path) -> None:
    job = simulate(seed=4).write(tmp_path / "job")
    report.write_report(simulate(seed=5, steps=50).write(tmp_path / "b"), tmp_path / "base")
    (tmp_path / "base" / "events.jsonl").unlink()
    text = in_words(report.write_report(job, tmp_path / "a", tmp_path / "base").read_text())
    assert "Not the same training:" in text
    assert "committed steps: 60 here, 50 in the baseline" in text
    assert "seed: 4 here, 5 in the baseline" in text
    assert "the baseline had" in text


@pytest.mark.parametrize("content", ["{", "[]", "{}", None])
def test_a_bad_baseline_is_refused_before_anything_is_written(
    tmp_path: Path, content: str | None
) -> None:
    job = simulate(steps=5).write(tmp_path / "job")
    (tmp_path / "base").mkdir()
    if content is not None:
        (tmp_path / "base" / "summary.json").write_text(content)
    with pytest.raises(UsageError):
        report.write_report(job, tmp_path / "out", tmp_path / "base")
    assert not (tmp_path / "out").exists()


@needs_plots
def test_text_of_the_log_is_only_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>&\"'</title>{{ 7*7 }}"
    events: list[dict[str, Any]] = simulate(steps=20).events
    for event in events:
        for name in ("job_id", "host", "name", "address", "mesh", "fault", "detail", "cluster"):
            if isinstance(event.get(name), str):
                event[name] = evil
    events[0]["argv"] = [evil]
    events.insert(5, {"t": events[5]["t"], "kind": "proc_exited", "mesh": evil, "rank": 9,
                      "host": evil, "pid": 1, "exit_code": 1, "stderr": [evil, "<b>"]})  # fmt: skip
    events[-2]["error"], events[-2]["status"] = evil, f'failed" onload="{evil}'
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    html = report.write_report(tmp_path, tmp_path).read_text()
    parsed = Page(html)
    assert parsed.text.count(evil) > 8
    assert "script" not in parsed.tags
    assert "b" not in parsed.tags[parsed.tags.index("picture") :]
    assert 'onload="' not in html


@pytest.mark.slow
def test_a_broken_log_still_has_a_report(tmp_path: Path) -> None:
    log = simulate(killed=True).write(tmp_path)
    with open(log, "ab") as file:
        file.write(b'not json\n\xff\n{"t": 1, "kind"')
    text = in_words(report.write_report(log, tmp_path).read_text())
    assert "unfinished" in text
    assert "2 lines of the event log could not be understood" in text


def test_an_empty_log_has_a_report_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    text = in_words(report.write_report(tmp_path, tmp_path).read_text())
    assert "tells of no training" in text


def test_hosts_on_one_machine_are_told_to_be_an_emulation() -> None:
    def notes(cluster: str, addresses: list[str]) -> str:
        events = simulate(cluster=cluster, fault_every=None, steps=3).events
        for event in events:
            if event["kind"] == "host_up":
                event["address"] = addresses[event["host"]]
        history = fold(events)
        return in_words(page.render(history, summarize(history), []))

    loopback, real = [f"127.0.0.{n}" for n in range(1, 5)], [f"10.0.0.{n}" for n in range(1, 5)]
    assert "Emulation: the 4 hosts are on one machine" in notes("slurm", loopback)
    assert "Emulation: the 4 hosts are on one machine" in notes("slurm", ["10.0.0.1"] * 4)
    assert "Emulation" not in notes("slurm", real)
    assert "Emulation" not in notes("slurm", ["a name", "b", "c", "d"])
    assert "Ran without Slurm" in notes("local", loopback)


def test_without_matplotlib_the_page_says_how_to_get_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    log = simulate().write(tmp_path)
    parsed = Page(report.write_report(log, tmp_path).read_text())
    assert "pip install 'slurmmesh[report]'" in parsed.text
    assert "img" not in parsed.tags


def test_nothing_of_telemetry_loads_matplotlib_before_a_plot_is_drawn() -> None:
    code = (
        "import sys; import slurmmesh.telemetry.report, slurmmesh.telemetry.view\n"
        "heavy = {'matplotlib', 'numpy', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@needs_plots
@pytest.mark.parametrize("mode", ["ddp", "diloco"])
def test_plots_are_pngs_of_both_themes(mode: str) -> None:
    drawn = plots.draw(fold(simulate(mode=mode).events), fold(simulate(fault_every=None).events))
    assert [plot.title for plot in drawn] == [
        "Participants over time",
        "Loss over steps",
        "Where the time of a recovery goes",
    ]
    for plot in drawn:
        assert plot.light.startswith(PNG)
        assert plot.dark.startswith(PNG)
        assert plot.light != plot.dark


@pytest.mark.slow
@needs_plots
def test_only_the_slowest_of_many_recoveries_are_drawn() -> None:
    events = [
        {"t": 1.0 + n, "kind": "recovered", "recovery": n, "replica": 0, "state_s": float(n)}
        for n in range(100)
    ]
    (_, plot) = plots.draw(fold([*events, {"t": 1.0, "kind": "step", "replica": 0, "step": 1}]))
    assert plot.title.endswith("(the 20 slowest of 100)")


@pytest.mark.slow
@needs_plots
@settings(max_examples=8, deadline=None)
@given(st.lists(events(), min_size=5, max_size=25))
def test_anything_can_be_reported(log: list[dict[str, Any]]) -> None:
    history = fold(log)
    html = page.render(history, summarize(history), plots.draw(history))
    Page(html)
    assert html.rstrip().endswith("</html>")


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    log = simulate(steps=5).write(tmp_path / "job")
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="cannot make the folder"):
        report.write_report(log, tmp_path / "file")
    with pytest.raises(ReportError, match="cannot make the folder"):
        report.write_report(log, tmp_path / "file" / "below")
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    with pytest.raises(ReportError, match="cannot write"):
        report.write_report(log, tmp_path / "out")
    assert not [name for name in os.listdir(tmp_path / "out") if name.endswith(".tmp")]


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_report_whole(tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk: the write itself fails, as there."""
    log = simulate(steps=40).write(tmp_path / "job")
    out = tmp_path / "out"
    report.write_report(log, out)
    before = {name: (out / name).read_bytes() for name in os.listdir(out)}
    run = subprocess.run(
        [sys.executable, "-m", "slurmmesh.telemetry.report", str(log), "--out", str(out)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == ReportError.exit_code
    assert run.stderr.startswith("report: cannot write ")
    assert run.stderr.count("\n") == 1
    assert {name: (out / name).read_bytes() for name in os.listdir(out)} == before


@pytest.mark.slow
def test_the_command_writes_beside_the_log_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(steps=5).write(tmp_path)
    assert report.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert report.main([str(tmp_path / "events.jsonl"), "--out", str(tmp_path / "o")]) == 0
    assert (tmp_path / "o" / "report.html").is_file()


def test_the_command_tells_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(tmp_path)]) == 2
    assert "there is no event log at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cpu", "The replicas computed on CPUs, with tensors between them over Gloo"),
        ("cuda AMD Instinct MI250X", "The replicas computed on: cuda AMD Instinct MI250X"),
    ],
)
def test_the_page_names_what_the_replicas_computed_on(device: str, words: str) -> None:
    events = simulate(steps=5).events
    told = {"t": events[-2]["t"], "kind": "replica_started", "replica": 0, "device": device}
    history = fold([*events, told])
    assert words in page.render(history, summarize(history), [])
