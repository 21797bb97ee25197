"""Host lists as scontrol reads them.

Where scontrol 22.05 does otherwise than it says, it is not followed; ``test_where_we_differ`` has
these cases. Where it gives nothing, it complains of an invalid list, and ends with 0 all the same.
"""

from __future__ import annotations

import random
import re

import pytest

from slurmmesh.errors import HostListError
from slurmmesh.lab import Lab
from slurmmesh.slurm.hostlists import compress, expand

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

_SCRIPT = 'while IFS= read -r -d "" list; do scontrol show hostnames "$list"; echo --; done'


def scontrol(lab: Lab, texts: list[str]) -> list[list[str]]:
    told = lab.run("bash", "-c", _SCRIPT, input="".join(f"{text}\0" for text in texts), timeout=300)
    answers = [block.split() for block in told.stdout.split("--\n")[:-1]]
    assert len(answers) == len(texts)
    return answers


def test_two_thousand_lists(lab: Lab) -> None:
    rng = random.Random(7)
    texts = [_random_list(rng) for _ in range(2000)]
    for text, hosts in zip(texts, scontrol(lab, texts), strict=True):
        assert expand(text) == hosts, text


def test_what_we_compress_is_read_by_scontrol(lab: Lab) -> None:
    """Without suffixes, which it cannot read."""
    rng = random.Random(11)
    lists = [expand(_random_list(rng)) for _ in range(200)]
    texts = [compress(hosts) for hosts in lists]
    plain = [
        (text, hosts)
        for text, hosts in zip(texts, lists, strict=True)
        if _brackets(text) < 3 and not re.search(r"\][^,\[]+(,|$)", text)
    ]
    assert len(plain) > 80
    for (text, hosts), told in zip(plain, scontrol(lab, [text for text, _ in plain]), strict=True):
        assert told == hosts, text


def _brackets(text: str) -> int:
    """The most in any one name."""
    depth, most, count = 0, 0, 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        count = 0 if letter == "," and not depth else count + (letter == "[")
        most = max(most, count)
    return most


@pytest.mark.parametrize(
    ("text", "ours", "scontrols"),
    [
        # Names that go on after the last bracket: it knows none, although its own docs show them.
        ("n[1-2]-ib", ["n1-ib", "n2-ib"], ""),
        ("b2u[05,02]n3", ["b2u05n3", "b2u02n3"], ""),
        # Three brackets: it takes the middle one for the slowest.
        (
            "n[1-2]a[1-2]b[1-2]",
            ["n1a1b1", "n1a1b2", "n1a2b1", "n1a2b2", "n2a1b1", "n2a1b2", "n2a2b1", "n2a2b2"],
            "n1a1b1 n1a1b2 n2a1b1 n2a1b2 n1a2b1 n1a2b2 n2a2b1 n2a2b2",
        ),
        # Blanks in a bracket: it counts them as digits.
        ("n[1, 2]", ["n1", "n2"], "n1 n02"),
        ("n[ 1-2]", ["n1", "n2"], "n01 n02"),
        # Numbers of more than 64 bits: it cuts them.
        ("n[99999999999999999999]", ["n99999999999999999999"], "n18446744073709551615"),
        # Longer ranges than it likes.
        ("n[1-70000]", 70000, ""),
        # A new line between names with two brackets: it takes them for one name.
        ("a[1]b[1]\nc[2]d[2]", ["a1b1", "c2d2"], "a1b1 c2d2"),
        (
            "a[1-2]b[1]\nc[1-2]d[1]",
            ["a1b1", "a2b1", "c1d1", "c2d1"],
            "a1b1 c1d1 a2b1 c1d1 a1b1 c2d1 a2b1 c2d1",
        ),
        # Nonsense that it reads.
        ("n[1", None, "n]"),
        ("n1]", None, "n1]"),
        ("n[1-]", None, "n1"),
    ],
)
def test_where_we_differ(lab: Lab, text: str, ours: list[str] | int | None, scontrols: str) -> None:
    assert " ".join(scontrol(lab, [text])[0]) == scontrols
    if ours is None:
        with pytest.raises(HostListError):
            expand(text)
    elif isinstance(ours, int):
        assert len(expand(text)) == ours
    else:
        assert expand(text) == ours


def _random_list(rng: random.Random) -> str:
    names = [_random_name(rng) for _ in range(rng.randint(1, 4))]
    text = names[0]
    for name in names[1:]:
        text += rng.choice([",", ",", ",,", " ", ", ", " , ", "\t"]) + name
    return rng.choice(["", "", " ", ","]) + text + rng.choice(["", "", " ", ","])


def _random_name(rng: random.Random) -> str:
    name = rng.choice(["n", "node", "rack-", "a.b", "é", ""])
    kind = rng.random()
    if kind < 0.2:
        return name + str(rng.randint(0, 99))
    if kind < 0.3:
        return f"{name or 'm'}{rng.randint(0, 9)}-ib"
    for last in range(rng.randint(1, 2), 0, -1):
        items = []
        for _ in range(rng.randint(1, 3)):
            low = rng.randint(0, 120)
            width = rng.choice([0, 0, 2, 3, 4])
            item = f"{low:0{width}}"
            if rng.random() < 0.6:
                item += f"-{low + rng.randint(0, 12):0{width}}"
            items.append(item)
        name += f"[{','.join(items)}]" + (rng.choice(["_x", "y", ""]) if last > 1 else "")
    return name
