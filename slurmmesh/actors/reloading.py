"""Edited modules in a running proc: which have changed since they were imported, reloaded in order.

Only modules of the user's count: found by path, and in no folder of installed packages.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import linecache
import os
import site
import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

RELOAD = "__reload__"
"""A call to an endpoint of this name is answered by ``reload_once``, in the actor's thread."""

_INSTALLED = tuple(
    f"{path}/"
    for path in (os.path.dirname(os.__file__), *site.getsitepackages(), site.USER_SITE)
    if path
)


class SourceLog:
    """A finder for ``sys.meta_path`` that notes the source of modules as they are imported."""

    def __init__(self) -> None:
        self.sources: dict[str, tuple[str, bytes]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find it as Python does, and note where and what it is."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None and _is_users(name, spec.origin):
            self.sources[name] = spec.origin, _hash_of(spec.origin)
        return spec

    def changed(self) -> list[str]:
        """Imported modules whose files are others now. One whose file is gone stays as it is."""
        return [
            name
            for name, (path, known) in self.sources.items()
            if name in sys.modules and (now := _hash_of(path)) and now != known
        ]


_log = SourceLog()
_lock = threading.RLock()
_last: tuple[Any, tuple[str, ...]] = (None, ())


def note_imports() -> None:
    """From here on notice what is imported. Called once, before anything of the user is."""
    # Python's own modules are found before, whatever files have their names.
    place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    sys.meta_path.insert(place, _log)


def users_modules() -> list[str]:
    """The names of the modules of the user's that are imported here."""
    return [name for name in _log.sources if name in sys.modules]


def reload_once(request: Any, names: Collection[str]) -> tuple[str, ...]:
    """Reload modules; a second call for the same request only tells what the first one did.

    Reloaded are the modules named, or, if there are none, those whose files have changed; and of
    the modules that were noted those that import them. One that is not imported here is none of
    them. If one raises, those after it stay as they were, to be reloaded by the next request.

    Returns their names, in the order in which they were reloaded.
    """
    global _last
    with _lock:
        if _last[0] == request:
            return _last[1]
        importlib.invalidate_caches()
        changed = _log.changed()
        for name in changed:
            _drop_bytecode(_log.sources[name][0])
        wanted = [name for name in names if name in sys.modules] if names else changed
        order = reload_order(wanted, _imports_of_all())
        before = dict(_log.sources)
        for index, name in enumerate(order):
            try:
                importlib.reload(sys.modules[name])
            except BaseException:
                for missed in order[index:]:
                    if missed in before:
                        _log.sources[missed] = before[missed]
                raise
        linecache.checkcache()
        _last = request, tuple(order)
        return _last[1]


def renew(instance: Any) -> None:
    """Give an object the class that its module has under the name of its own now.

    Raises:
        TypeError: the new class lays out its objects in another way.
    """
    cls = type(instance)
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and found is not cls:
        instance.__class__ = found


def reload_order(changed: Iterable[str], imports: Mapping[str, Collection[str]]) -> list[str]:
    """The modules to reload: the changed ones and all that import them, these after those.

    Args:
        imports: what each module imports. Where that goes round in circles any order is right.
    """
    importers: dict[str, list[str]] = {}
    for name, imported in imports.items():
        for each in imported:
            importers.setdefault(each, []).append(name)
    affected: dict[str, None] = {}
    waiting = list(changed)
    while waiting:
        name = waiting.pop()
        if name not in affected:
            affected[name] = None
            waiting += importers.get(name, ())
    order: dict[str, None] = {}
    for name in sorted(affected):
        _put(name, affected.keys(), imports, order)
    return list(order)


def _put(
    start: str,
    among: Collection[str],
    imports: Mapping[str, Collection[str]],
    order: dict[str, None],
) -> None:
    """Append a module to ``order``, after what it imports."""
    entered = {start}
    stack = [(start, iter(sorted(imports.get(start, ()))))]
    while stack:
        name, rest = stack[-1]
        for each in rest:
            if each in among and each not in order and each not in entered:
                entered.add(each)
                stack.append((each, iter(sorted(imports.get(each, ())))))
                break
        else:
            stack.pop()
            order[name] = None


def imports_of(source: str | bytes, module: str, is_package: bool) -> set[str]:
    """The names of modules that a module's own statements may import; none if it is no Python.

    What its functions import when they run is not among them.
    """
    package = module if is_package else module.rpartition(".")[0]
    found: set[str] = set()
    try:
        waiting: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):
        return found
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                found |= _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(node, package)
            if base:
                found |= _with_packages(base)
                found |= {f"{base}.{alias.name}" for alias in node.names}
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return found


def _base_of(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    try:
        return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:
        return ""


def _with_packages(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[: end + 1]) for end in range(len(parts))}


def _imports_of_all() -> dict[str, set[str]]:
    found = {}
    for name, (path, _) in _log.sources.items():
        if name in sys.modules:
            is_package = hasattr(sys.modules[name], "__path__")
            found[name] = imports_of(_read(path), name, is_package)
    return found


def _drop_bytecode(path: str) -> None:
    """Python takes old bytecode for that of a source of the same size and second."""
    with contextlib.suppress(OSError, NotImplementedError):
        os.unlink(importlib.util.cache_from_source(path))


def _is_users(name: str, origin: str) -> bool:
    ours = name.partition(".")[0] == "slurmmesh"
    return origin.endswith(".py") and not ours and not origin.startswith(_INSTALLED)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _hash_of(path: str) -> bytes:
    """Of a file's content; of one that cannot be read or is empty, nothing."""
    content = _read(path)
    return hashlib.blake2b(content, digest_size=16).digest() if content else b""
