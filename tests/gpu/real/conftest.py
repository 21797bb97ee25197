"""The real libraries for tests; a test whose libraries are not there skips and says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu.real.libraries import Libraries, NotFetched, find


@pytest.fixture(scope="session")
def libraries() -> Callable[[str], Libraries]:
    """``libraries("debian-13")``."""

    def get(name: str) -> Libraries:
        try:
            return find(name)
        except NotFetched as reason:
            pytest.skip(str(reason))

    return get
