"""Host lists: as scontrol reads them, and more."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import HostListError
from slurmmesh.slurm.hostlists import MAX_HOSTS, compress, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("node1", ["node1"]),
        ("node[001-003,007]", ["node001", "node002", "node003", "node007"]),
        (
            "rack[0-1]_blade[0-1]",
            ["rack0_blade0", "rack0_blade1", "rack1_blade0", "rack1_blade1"],
        ),
        ("b2u[05,02]n3", ["b2u05n3", "b2u02n3"]),
        ("a,b[001,003-004],c", ["a", "b001", "b003", "b004", "c"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[98-101]", ["n98", "n99", "n100", "n101"]),
        ("n[1-2][3-4]", ["n13", "n14", "n23", "n24"]),
        ("n[2,1,2]", ["n2", "n1", "n2"]),
        ("a,a", ["a", "a"]),
        ("[1-3]", ["1", "2", "3"]),
        ("a, b\tc,,d,", ["a", "b", "c", "d"]),
        ("n-1", ["n-1"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("n[1, 3-4 ,\t7]x , m", ["n1x", "n3x", "n4x", "n7x", "m"]),
        ("n[1-03]", ["n1", "n2", "n3"]),
        ("n99999999999999999999", ["n99999999999999999999"]),
        (f"n[{'0' * 5000}1]", [f"n{'0' * 5000}1"]),
        ("é[1-2].org", ["é1.org", "é2.org"]),
    ],
)
def test_expands(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("node[1-3", 4, "without a ']'"),
        ("node1-3]", 7, "without a '['"),
        ("a,n[3-1]", 4, "backwards"),
        ("n[]", 2, "no number"),
        ("n[1,,2]", 4, "no number"),
        ("n[1,]", 4, "no number"),
        ("n[a-b]", 2, "no number"),
        ("n[1-2-3]", 2, "no number"),
        ("n[-2]", 2, "no number"),
        ("n[1-]", 2, "no number"),
        ("n[[1-2]]", 2, "no number"),
        ("n[²]", 2, "no number"),
        ("n[1-9:2]", 2, "no number"),
        ("n[1, x]", 5, "no number"),
        ("n[1 2]", 2, "no number"),
        (f"n[1-{'9' * 5000}]", 2, "more than 18 digits"),
        ("n[1-1000001]", 2, "more than"),
        ("n[1-2000][1-2000]", 9, "more than"),
        (f"n[0-{MAX_HOSTS - 1}],m", MAX_HOSTS, "more than"),
    ],
)
def test_tells_where_a_list_is_wrong(text: str, position: int, problem: str) -> None:
    with pytest.raises(HostListError, match=problem.replace("[", r"\[")) as caught:
        expand(text)
    if position < MAX_HOSTS:
        assert caught.value.position == position
    assert caught.value.text == text
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.position, str(again)) == (caught.value.position, str(caught.value))


PREFIX = st.text("abz_.é-", min_size=1, max_size=5).filter(lambda text: text[0] not in "-.")
NUMBER = st.from_regex(r"[0-9]{1,4}", fullmatch=True)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A bracket's item and the numbers it stands for."""
    first = draw(NUMBER)
    if draw(st.booleans()):
        return first, [first]
    count = draw(st.integers(1, 12))
    numbers = [str(n).zfill(len(first)) for n in range(int(first), int(first) + count)]
    return f"{first}-{numbers[-1]}", numbers


@st.composite
def names(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A name with brackets and the hosts it stands for."""
    text, hosts = draw(PREFIX), [""]
    hosts = [text]
    for _ in range(draw(st.integers(0, 2))):
        items = draw(st.lists(ranges(), min_size=1, max_size=3))
        suffix = draw(st.text("xy", max_size=2))
        text += "[" + ",".join(item for item, _ in items) + "]" + suffix
        numbers = [number for _, expanded in items for number in expanded]
        hosts = [host + number + suffix for host in hosts for number in numbers]
    return text, hosts


@given(st.lists(names(), max_size=4))
def test_any_list_gives_its_hosts_in_order(parts: list[tuple[str, list[str]]]) -> None:
    text = ",".join(name for name, _ in parts)
    assert expand(text) == [host for _, hosts in parts for host in hosts]


NAME = st.text("ab09-._é", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["node1"], "node1"),
        (["node1", "node2", "node3", "node5"], "node[1-3,5]"),
        (["node1-ib", "node2-ib"], "node[1-2]-ib"),
        (["n08", "n09", "n10", "n100"], "n[08-10,100]"),
        (["n9", "n10", "n011"], "n[9-10,011]"),
        (["n2", "n1", "n1", "login"], "n[2,1,1],login"),
        (["r0b0", "r0b1", "r1b0", "r1b1"], "r[0-1]b[0-1]"),
        (["r0b0", "r0b1", "r1b0"], "r0b[0-1],r1b0"),
        (["10.0.0.1", "10.0.0.2", "10.0.1.1"], "10.0.0.[1-2],10.0.1.1"),
        (["1", "2"], "[1-2]"),
        (["a", "a"], "a,a"),
    ],
)
def test_compresses(hosts: list[str], text: str) -> None:
    assert compress(hosts) == text
    assert expand(text) == hosts


@pytest.mark.parametrize(
    ("hosts", "position"), [([""], 0), (["a", "b c"], 1), (["n[1"], 1), (["a,b"], 1), (["a\n"], 1)]
)
def test_no_list_can_hold_such_a_name(hosts: list[str], position: int) -> None:
    with pytest.raises(HostListError) as caught:
        compress(hosts)
    assert caught.value.position == position


@given(
    st.lists(
        st.one_of(
            NAME,
            st.builds("r{}n{:02}-ib".format, st.integers(0, 3), st.integers(0, 12)),
            st.builds("n{}".format, st.from_regex("[0-9]{1,20}", fullmatch=True)),
        ),
        max_size=30,
    )
)
def test_what_is_compressed_expands_to_the_same(hosts: list[str]) -> None:
    text = compress(hosts)
    assert expand(text) == hosts
    assert text.count("[") <= len(hosts)


@given(st.lists(names(), max_size=4))
def test_compressing_what_was_expanded_changes_nothing_the_second_time(
    parts: list[tuple[str, list[str]]],
) -> None:
    hosts = expand(",".join(name for name, _ in parts))
    text = compress(hosts)
    assert expand(text) == hosts
    assert compress(expand(text)) == text


def test_the_nodes_of_a_large_cluster() -> None:
    hosts = [f"rack{n // 64:03}-node{n % 64:02}" for n in range(64 * 256)]
    assert compress(hosts) == "rack[000-255]-node[00-63]"


@given(st.text("n0123[],- x", max_size=20))
def test_any_text_gives_hosts_or_an_error_at_a_position(text: str) -> None:
    try:
        hosts = expand(text)
    except HostListError as wrong:
        error = wrong
    else:
        assert all(host and not set(host) & set("[], ") for host in hosts)
        return
    assert 0 <= error.position < len(text)
