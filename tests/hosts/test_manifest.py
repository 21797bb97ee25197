"""Lists of what a folder holds: checked, compared, and turned into messages."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import WorkspaceError
from slurmmesh.hosts.manifest import (
    Entry,
    check_manifest,
    difference,
    import_path,
    moved,
    new_hash,
    plan,
)


def digest(content: bytes) -> bytes:
    hashed = new_hash()
    hashed.update(content)
    return hashed.digest()


def file(path: str, content: bytes = b"x", mode: int = 0o644) -> Entry:
    return Entry(path, "file", mode, len(content), digest(content))


def test_a_sound_list_passes():
    check_manifest(
        (
            file("a.py"),
            Entry("pkg", "folder"),
            file("pkg/m.py"),
            Entry("pkg/up", "link", target="../a.py"),
            Entry("data", "link", target="/scratch/data"),
        )
    )


@pytest.mark.parametrize(
    "entries",
    [
        (file("../x"),),
        (file("/etc/x"),),
        (file(""),),
        (file("."),),
        (file("a/b"),),  # in no folder of the list
        (Entry("a", "link", target="/etc"), file("a/b")),
        (file("a"), file("a/b")),
        (Entry("a", "folder"), file("a/../b")),
        (Entry("a", "folder"), file("a//b")),
        (Entry("a", "folder"), file("a/./b")),
        (Entry("a", "folder"), file("a/")),
        (file("a"), file("a")),
        (Entry("a", "folder"), Entry("a", "folder")),
        (file("a\0b"),),
        (file("/a"),),
        (Entry("/a", "folder"), file("/a/b")),
        (Entry("a", "link", target="../../etc"),),
        (Entry("a", "link", target="x/../.."),),
        (Entry("a", "link"),),
        (Entry("a", "device"),),
        (Entry("a", "file", 0o4755, 1, digest(b"")),),
        (Entry("a", "file", 0o644, -1, digest(b"")),),
        (Entry("a", "file", 0o644, 1, b"../../x"),),
    ],
)
def test_a_list_that_leads_out_or_makes_no_sense_is_refused(entries):
    with pytest.raises(WorkspaceError):
        check_manifest(entries)


parts = st.sampled_from(["a", "b", "..", ".", "", "c d", "\0"])
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)
entries = st.one_of(
    paths.map(file),
    paths.map(lambda path: Entry(path, "folder")),
    st.tuples(paths, paths).map(lambda pair: Entry(pair[0], "link", target=pair[1])),
)


@given(st.lists(entries, max_size=8))
def test_whatever_passes_is_written_inside(manifest):
    try:
        check_manifest(tuple(manifest))
    except WorkspaceError:
        return
    folders = {""} | {entry.path for entry in manifest if entry.kind == "folder"}
    for entry in manifest:
        names = entry.path.split("/")
        assert not {"", ".", ".."} & set(names)
        assert "/".join(names[:-1]) in folders


contents = st.dictionaries(st.binary(min_size=1, max_size=3), st.integers(0, 50), max_size=12)


@given(contents, st.integers(1, 20), st.data())
def test_each_host_gets_what_it_lacks_once_in_order_and_in_bounds(sizes, limit, data):
    lacking = data.draw(
        st.dictionaries(
            st.integers(0, 5), st.lists(st.sampled_from(sorted(sizes)), max_size=20), max_size=6
        )
        if sizes
        else st.just({})
    )
    got: dict[int, dict[bytes, list]] = {host: {} for host in lacking}
    for hosts, pieces in plan(lacking, sizes, limit):
        assert pieces
        assert sum(piece.length for piece in pieces) <= limit
        for host in hosts:
            for piece in pieces:
                got[host].setdefault(piece.digest, []).append(piece)
    for host, digests in lacking.items():
        assert got[host].keys() == set(digests)
        for name, pieces in got[host].items():
            at = 0
            for piece in pieces:
                assert piece.offset == at
                at += piece.length
            assert at == sizes[name]


def test_a_content_that_all_lack_is_sent_in_one_message_to_all():
    sizes = {b"a": 3, b"b": 4}
    (message,) = plan({0: [b"a", b"b"], 1: [b"b", b"a"], 2: [b"a", b"b"]}, sizes)
    assert message[0] == (0, 1, 2)
    assert {piece.digest for piece in message[1]} == {b"a", b"b"}


trees = st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=2), max_size=6)


@given(trees, trees)
def test_differences(old, new):
    found = difference(
        tuple(file(path, content) for path, content in old.items()),
        tuple(file(path, content) for path, content in new.items()),
    )
    assert set(found.added) == new.keys() - old.keys()
    assert set(found.removed) == old.keys() - new.keys()
    assert set(found.changed) == {p for p in old.keys() & new.keys() if old[p] != new[p]}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/home/me/code", "/tmp/copy"),
        ("/home/me/code/src/x.py", "/tmp/copy/src/x.py"),
        ("/home/me/codes", None),
        ("/home/me", None),
        ("/", None),
    ],
)
def test_where_a_path_lies_in_the_copy(path, place):
    assert moved(path, "/home/me/code", "/tmp/copy") == place


def test_the_import_path_names_copies():
    entries = ("/code", "/usr/lib/python3", "/code/src", "/site")
    assert import_path(entries, {"/code": "/copy"}) == (
        *("/copy", "/usr/lib/python3", "/copy/src", "/site"),
    )
    assert import_path(entries, {}) == entries
    assert import_path(entries, {"/other": "/copy"}) == ("/copy", *entries)
    both = {"/code": "/1", "/code/src": "/2"}
    assert import_path(entries, both) == ("/1", "/usr/lib/python3", "/2", "/site")


def test_the_error_travels():
    error = pickle.loads(pickle.dumps(WorkspaceError("no room", "node7")))
    assert (error.host, error.message, str(error)) == ("node7", "no room", "host node7: no room")
