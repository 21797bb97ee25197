"""The real libraries for tests; a test whose libraries are not there skips and says why."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from tests.gpu.real.libraries import Libraries, NotFetched, find


@pytest.fixture(scope="session")
def libraries() -> Callable[[str], Libraries]:
    """``libraries("debian-13")``, or of several sources: ``libraries("debian-nvidia+pypi")``."""

    @functools.cache
    def get(name: str) -> Libraries:
        try:
            first, *others = map(find, name.split("+"))
        except NotFetched as reason:
            pytest.skip(str(reason))
        return sum(others, first)

    return get
