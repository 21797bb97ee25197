"""What .gitignore files leave out: as git itself does it, whatever the lines are."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmmesh.hosts.folder import read_folder
from slurmmesh.hosts.ignore import IgnoreRules

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

NAMES = ["a", "b", "ab", "a.py", "b.log", "build", "x y", "#c", "!d", "é"]
# Not here: two stars beside something else, as in "a**", which git's releases take differently.
LINES = [
    *("*", "!*/", "!*.py", "a", "/a", "a/", "!a", "*.log", "!b.log", "a/b", "a/**", "**/a"),
    *("a/**/b", "!a/b/", "build/", "/*", "!/a", "a*", "?", "[ab]", "[!a]", "\\#c", "\\!d"),
    *("x\\ y", "b/ ", "**", "a/*", "!a/*", "/**/b", "*/b", "[]a]", "a\\*", "[[:alpha:]]"),
    *("!**/", "a/**/**/b", "**/**", "/**/", "a/**/", "**/", "***", "a/***", "a/***/b", "[a"),
    *("a\\", "[[:foo:]]", "[a-b]", "[b-a]x", "[!b-a]", "[]-a]", "[a-]", "[\\]a]", "/", "//a"),
    *("a//b", "!", "#a", "a  ", "a\\  ", "[^a]*", "*[", "[[]", "[[:a]", "a/b/", "*.*", "?.*"),
    *("!*", "*a*b*", "**/b.log", "ab/**", "!ab/a", "\\", "[a\\-b]", "**/a/**", "", "  ", "??"),
]
folders = st.lists(st.sampled_from(NAMES), max_size=3).map("/".join)
lines = st.lists(st.sampled_from(LINES), min_size=1, max_size=4)


def kept_by_git(top: Path) -> list[str]:
    done = subprocess.run(
        ["git", "-C", str(top), "ls-files", "-o", "-z", "--exclude-standard"],
        capture_output=True,
        check=True,
    )
    return sorted(name for name in done.stdout.decode().split("\0") if name)


@pytest.mark.slow
@needs_git
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(folders, min_size=1, max_size=6), st.dictionaries(folders, lines, max_size=3), lines
)
def test_the_same_is_left_out_as_by_git(where, ignore_files, top_lines):
    with tempfile.TemporaryDirectory() as made:
        top = Path(made)
        subprocess.run(["git", "init", "-q", made], check=True)
        for folder in {"", *where, *ignore_files}:
            (top / folder).mkdir(parents=True, exist_ok=True)
        for folder in {"", *where, *ignore_files}:
            for name in NAMES:
                if not (top / folder / name).exists():
                    (top / folder / name).touch()
        for folder, found in {**ignore_files, "": top_lines}.items():
            (top / folder / ".gitignore").write_text("\n".join(found) + "\n")
        listing = read_folder(made, max_bytes=1 << 20)
        ours = sorted(entry.path for entry in listing.manifest if entry.kind == "file")
        assert ours == kept_by_git(top)


@pytest.mark.parametrize(
    ("line", "path", "ignored"),
    [
        ("*.pyc\r", "m.pyc", True),
        ("data", "deep/down/data", True),
        ("/data", "deep/data", False),
        ("deep/data", "deep/data", True),
        ("deep/data", "other/deep/data", False),
        ("a?c", "aéc", False),  # two bytes
        ("a??c", "aéc", True),
        ("a*", "a/b", False),
        ("**/x/y", "x/y", True),
    ],
)
def test_lines(line, path, ignored):
    assert bool(IgnoreRules("", [line]).ignores(path, False)) is ignored


def test_a_deeper_file_counts_more_and_the_last_line_most():
    above = IgnoreRules("", ["*.log", "!a.log", "*.txt"])
    below = IgnoreRules("sub/", ["!b.log", "a.log"], above)
    said = {name: below.ignores(f"sub/{name}", False) for name in ("a.log", "b.log", "c.log")}
    assert said == {"a.log": True, "b.log": False, "c.log": True}
    assert above.ignores("a.log", False) is False
    assert below.ignores("sub/other", False) is None


@given(st.text(max_size=12), st.text(min_size=1, max_size=12), st.booleans())
def test_no_line_is_too_odd(line, path, is_folder):
    assert IgnoreRules("", [line]).ignores(path, is_folder) in (True, False, None)
