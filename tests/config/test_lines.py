"""Where each key of a TOML text stands."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.config.documents import _toml_reader
from slurmmesh.config.lines import KeyPath, lines_of

TEXT = '''# comment with = and "quotes" and [brackets

one = 1
"quoted key" = """several
fake = 1
[fake]
\\""" still""" # end
many = [
  ["a"],   # ]
  "b = 1",
  { c = 1 }]
dotted.key = \'\'\'it's
fake = 2\'\'\'
[table] # x = 1
in.it = "# no comment"
inline = { a = 1, b = { c = "}" } }
["quoted.table".sub]
x = 'lite"ral'
[[several]]
y = 1
'''


def test_keys_are_found_among_what_looks_like_keys() -> None:
    assert lines_of(TEXT, _toml_reader()) == {
        ("one",): 3,
        ("quoted key",): 4,
        ("many",): 8,
        ("dotted",): 12,
        ("dotted", "key"): 12,
        ("table",): 14,
        ("table", "in"): 15,
        ("table", "in", "it"): 15,
        ("table", "inline"): 16,
        ("table", "inline", "a"): 16,
        ("table", "inline", "b"): 16,
        ("table", "inline", "b", "c"): 16,
        ("quoted.table",): 17,
        ("quoted.table", "sub"): 17,
        ("quoted.table", "sub", "x"): 18,
        ("several",): 19,
        ("several", "y"): 20,
    }


texts = st.text(string.ascii_letters + "#[]{}='\\\n\t ,", max_size=12)
basic = texts.map(lambda t: '"' + t.replace("\\", r"\\").replace("\n", r"\n") + '"')
literal = texts.map(lambda t: "'" + t.replace("'", "").replace("\n", "") + "'")
long_basic = texts.map(lambda t: '"""\n' + t.replace("\\", r"\\") + '"""')
long_literal = texts.map(lambda t: "'''" + t.replace("'", "") + "'''")
scalars = basic | literal | long_basic | long_literal | st.integers().map(str)
arrays = st.lists(scalars, max_size=3).map(lambda items: "[ # ]\n" + ",\n".join(items) + "\n]")
statements = scalars | arrays


@given(st.lists(st.tuples(statements, st.sampled_from(["", "\n", "# x = '\n", "  "])), max_size=8))
def test_whatever_the_values_are(entries: list[tuple[str, str]]) -> None:
    text, expected = "", {}
    for number, (value, gap) in enumerate(entries):
        text += gap
        expected[(f"k{number}",)] = text.count("\n") + 1
        text += f"k{number} = {value} # comment\n"
    found: dict[KeyPath, int] = lines_of(text, _toml_reader())
    assert found == expected
