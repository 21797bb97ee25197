"""How the agent of another node finds its controller and proves who it is."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import Any

from slurmmesh.errors import SetupError
from slurmmesh.hosts.agent import HostAgent
from slurmmesh.hosts.forking import ForkServer, fork_here
from slurmmesh.hosts.node import at_home
from slurmmesh.slurm.addresses import Choice, parse_wish
from slurmmesh.slurm.reach import choose_here
from slurmmesh.wire.identity import Credentials, client_context, peer_name
from slurmmesh.wire.listener import wrap

_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class DialSpec:
    """How an agent on another node finds its controller.

    Attributes:
        targets: addresses of the controller, each with its port, to be tried in this order.
        identity: folder of the job's certificates (0700).
        name: of this host's certificate.
        interface: by which hosts are to reach each other, see ``parse_wish``; empty for the one
            of the route to the controller.
    """

    targets: tuple[tuple[str, int], ...]
    identity: str
    name: str
    interface: str = ""


def dial(spec: DialSpec) -> int:
    """Be the host agent of this node until the job ends. Called in the srun step.

    Returns the exit code.

    Raises:
        SetupError: none of the controller's addresses could be reached.
        IdentityError: the certificate is missing or not private.
    """
    with at_home(os.environ):
        return _dial(spec, fork_here())


def _dial(spec: DialSpec, server: ForkServer | None) -> int:
    credentials = Credentials.read(spec.identity, spec.name)
    raw, warning = _connect(spec)
    controller = str(raw.getpeername()[0])
    sock = wrap(raw, client_context(credentials), server_side=False)

    def authenticate(connected: Any) -> str:
        return peer_name(connected, "controller")

    def place() -> Choice:
        others = [("the controller", controller)]
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        best, *_ = choose_here(parse_wish(spec.interface), others, node)
        return replace(best, warning="; ".join(filter(None, [warning, best.warning])))

    return HostAgent(sock, authenticate, place, server).run()


def _connect(spec: DialSpec) -> tuple[socket.socket, str]:
    """A connection to the controller, and in words which of its addresses did not answer."""
    failures = ""
    for target in spec.targets:
        try:
            connected = socket.create_connection(target, timeout=_CONNECT_TIMEOUT_S)
        except OSError as error:
            failures += f"{'; ' if failures else ''}{target[0]} port {target[1]}: {error}"
        else:
            return connected, failures and f"could not reach the controller at {failures}"
    raise SetupError(f"host {spec.name} cannot reach the controller at {failures}")
