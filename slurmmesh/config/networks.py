"""The setting ``interface``: a list of interfaces and networks, as far as it can be checked."""

from __future__ import annotations

import ipaddress
import re


def network_items(text: str) -> tuple[str, ...]:
    """The items of ``ib0,10.8.0.0/16`` or of ``^docker0,virbr0``; none of an empty text.

    Interfaces are looked for on the nodes, which alone have them.

    Raises:
        ValueError: what is wrong, to stand behind the text.
    """
    if not text:
        return ()
    items = tuple(item.strip() for item in text.removeprefix("^").split(","))
    for item in items:
        if not item.removeprefix("=") or re.search(r"[\^\s]", item):
            raise ValueError(
                "is no list of interfaces and networks: give such as ib0, hsn, 10.8.0.0/16, "
                "several by commas, or ^docker0,virbr0 to leave some out"
            )
        if "/" in item or ":" in item:
            try:
                ipaddress.ip_network(item, strict=False)
            except ValueError as error:
                raise ValueError(
                    f"is no network: {error}; give one such as 10.8.0.0/16 or fd00:8::/64, or "
                    "the name of an interface"
                ) from None
    return items
