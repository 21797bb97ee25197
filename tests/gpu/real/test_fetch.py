"""Fetching the real libraries: what cannot be had is said, and tests of it skip for that reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu.real import fetch
from tests.gpu.real.libraries import RECORD, SOURCES, NotFetched, find

DEBIAN, NVIDIA, PYPI = (SOURCES[name] for name in ("debian-12", "debian-nvidia", "pypi"))


NOWHERE = "http://127.0.0.1:9"  # no one listens there


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """apt reaches nothing, nor does pip with these arguments."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, NOWHERE)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return ("--index-url", f"{NOWHERE}/simple", "--retries", "0", "--no-cache-dir")


def put(cache: Path, source: fetch.Source, asked: list[str]) -> Path:
    """As if it had been fetched."""
    folder = cache / source.name
    folder.mkdir(parents=True)
    record = {"asked": asked, "packages": {"libc6": "2.36"}, "seconds": 1}
    (folder / RECORD).write_text(json.dumps(record))
    return folder


def test_never_fetched_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFetched, match=r"debian-12 .* never fetched. `make gpu-libraries`"):
        find("debian-12", tmp_path)


def test_what_is_there_is_not_fetched_again(tmp_path: Path, offline: tuple[str, ...]) -> None:
    put(tmp_path, DEBIAN, list(DEBIAN.packages))
    fetch.fetch_missing([DEBIAN], offline, tmp_path)
    assert find("debian-12", tmp_path).packages == {"libc6": "2.36"}


def test_other_packages_than_asked_for_now_are_out_of_date(tmp_path: Path) -> None:
    put(tmp_path, DEBIAN, ["something-else"])
    with pytest.raises(NotFetched, match="out of date"):
        find("debian-12", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("source", [NVIDIA, PYPI], ids=lambda source: source.name)
def test_without_a_network_the_reason_is_kept_and_nothing_else(
    tmp_path: Path,
    offline: tuple[str, ...],
    source: fetch.Source,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if source.release:
        try:
            fetch.mirror()
        except fetch.Failed as no_debian:
            pytest.skip(str(no_debian))
    fetch.fetch_missing([source], offline, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["lock", f"{source.name}.reason"])
    reason = (tmp_path / f"{source.name}.reason").read_text().strip()
    assert reason.startswith(("apt-get update failed: E:", "pip download failed: ERROR:"))
    assert f"{reason}; tests of them skip" in capsys.readouterr().out
    with pytest.raises(NotFetched) as told:
        find(source.name, tmp_path)
    assert reason in str(told.value)


def test_a_mirror_that_does_not_answer_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch_debian(source: fetch.Source, folder: Path) -> dict[str, str]:
        asked.append(source.name)
        raise fetch.Unreachable("nobody there")

    monkeypatch.setattr(fetch, "fetch_debian", fetch_debian)
    fetch.fetch_missing([DEBIAN, NVIDIA], cache=tmp_path)
    assert asked == [DEBIAN.name]
    for source in (DEBIAN, NVIDIA):
        with pytest.raises(NotFetched, match="are not there: nobody there"):
            find(source.name, tmp_path)


def test_without_apt_that_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fetch.Failed, match="no apt-get here"):
        fetch.mirror()


@pytest.mark.parametrize(
    ("listed", "mirror"),
    [
        ("'http://m.test/debian/dists/bookworm/InRelease' a 0 \n", "http://m.test/debian"),
        ("'https://m.test/d/dists/stable/Release' a 0 \n", "https://m.test/d"),
        (
            "'http://o.test/x/dists/nodistro/InRelease' o 0 \n"
            "'http://m.test/debian-security/dists/bookworm-security/InRelease' s 0 \n"
            "'http://m.test/debian/dists/trixie/InRelease' a 0 \n",
            "http://m.test/debian",
        ),
    ],
)
def test_the_mirror_is_that_of_the_machines_sources(listed: str, mirror: str) -> None:
    assert fetch.mirror_in(listed) == mirror


def test_a_machine_of_another_distribution_has_no_mirror() -> None:
    with pytest.raises(fetch.Failed, match="no Debian mirror"):
        fetch.mirror_in("'http://m.test/ubuntu/dists/noble/InRelease' a 0 \n")


def test_a_command_that_fails_is_told_by_its_error() -> None:
    script = "echo fine; echo 'W: odd' >&2; echo 'E: no such host' >&2; echo last; exit 3"
    with pytest.raises(fetch.Failed, match=r"^sh -c failed: E: no such host$"):
        fetch.run("sh", "-c", script)
