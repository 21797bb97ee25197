"""Which modules an edit concerns, in which order they are reloaded, and what becomes of objects."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.actors import reloading
from slurmmesh.actors.reloading import SourceLog, imports_of, reload_once, reload_order, renew

names = st.sampled_from("abcdefgh")
graphs = st.dictionaries(names, st.sets(names, max_size=4), max_size=8)


def affected_by(changed: set[str], imports: dict[str, set[str]]) -> set[str]:
    found = set(changed)
    while more := {name for name, used in imports.items() if used & found} - found:
        found |= more
    return found


@given(st.sets(names), graphs)
def test_what_imports_a_changed_module_is_reloaded_too(changed, imports):
    order = reload_order(changed, imports)
    assert len(order) == len(set(order))
    assert set(order) == affected_by(changed, imports)


@given(st.sets(names), graphs)
def test_what_is_imported_is_reloaded_first(changed, imports):
    without_circles = {
        name: {each for each in used if each < name} for name, used in imports.items()
    }
    order = reload_order(changed, without_circles)
    for name in order:
        for each in without_circles.get(name, ()):
            if each in order:
                assert order.index(each) < order.index(name)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import a.b.c", {"a", "a.b", "a.b.c"}),
        ("from a import b as c", {"a", "a.b"}),
        ("from . import b", {"pkg.sub", "pkg", "pkg.sub.b"}),
        ("from ..x import y", {"pkg", "pkg.x", "pkg.x.y"}),
        ("from .... import y", set()),
        ("if 1:\n try:\n  import a\n except ImportError:\n  import b", {"a", "b"}),
        ("def f():\n import a", set()),
        ("class C:\n import a", {"a"}),
        ("import a; nonsense(", set()),
        ("\0", set()),
    ],
)
def test_imports_of_a_source(source, found):
    assert imports_of(source, "pkg.sub.module", is_package=False) == found


def test_a_package_imports_its_own_modules():
    assert imports_of("from . import b", "pkg", is_package=True) == {"pkg", "pkg.b"}


@given(st.text())
def test_no_source_is_too_odd(source):
    imports_of(source, "m", is_package=False)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules are imported from, and noted; nothing of it stays."""
    log = SourceLog()
    monkeypatch.setattr(reloading, "_log", log)
    monkeypatch.setattr(reloading, "_last", (None, ()))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # whose staleness is a danger
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    reloading.note_imports()
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_edit_reaches_what_imports_it(modules):
    (modules / "base.py").write_text("def f():\n    return 1\n")
    (modules / "user.py").write_text("from base import f\n\nseen = []\n")
    (modules / "apart.py").write_text("loads = 1\n")
    user = importlib.import_module("user")
    apart = importlib.import_module("apart")
    apart.loads += 1
    assert reload_once("1", ()) == ()
    (modules / "base.py").write_text("def f():\n    return 2\n")
    assert reload_once("2", ()) == ("base", "user")
    assert user.f() == 2
    assert apart.loads == 2
    assert reload_once("2", ()) == ("base", "user")  # the same request
    assert reload_once("3", ()) == ()
    assert reload_once("4", ["apart", "never_imported"]) == ("apart",)
    assert apart.loads == 1


def test_what_cannot_be_reloaded_is_tried_again_with_what_waits_for_it(modules):
    (modules / "base.py").write_text("value = 1\n")
    (modules / "user.py").write_text("from base import value\n")
    user = importlib.import_module("user")
    (modules / "base.py").write_text("value = (\n")
    for request in ("1", "2"):
        with pytest.raises(SyntaxError):
            reload_once(request, ())
    assert user.value == 1
    (modules / "base.py").write_text("value = 3\n")
    assert reload_once("3", ()) == ("base", "user")
    assert user.value == 3


def test_a_module_whose_file_is_gone_stays(modules):
    (modules / "base.py").write_text("value = 1\n")
    base = importlib.import_module("base")
    (modules / "base.py").unlink()
    assert reload_once("1", ()) == ()
    assert base.value == 1


def test_only_the_users_modules_are_noted(modules):
    sys.modules.pop("colorsys", None)
    importlib.import_module("colorsys")
    (modules / "mine.py").touch()
    importlib.import_module("mine")
    assert set(reloading._log.sources) == {"mine"}


def test_objects_get_the_new_class(modules):
    (modules / "shapes.py").write_text(
        "class Outer:\n class Square:\n  def sides(self): return 3\n"
    )
    shapes = importlib.import_module("shapes")
    square = shapes.Outer.Square()
    (modules / "shapes.py").write_text(
        "class Outer:\n class Square:\n  def sides(self): return 4\n"
    )
    reload_once("1", ())
    assert square.sides() == 3
    renew(square)
    assert square.sides() == 4
    (modules / "shapes.py").write_text("class Outer:\n class Square:\n  __slots__ = ('a',)\n")
    reload_once("2", ())
    with pytest.raises(TypeError):
        renew(square)
    (modules / "shapes.py").write_text("Outer = None\n")
    reload_once("3", ())
    renew(square)  # there is no new class
    assert square.sides() == 4
