"""One network namespace per node: a bridge in the namespace of the lab, a cable to each node.

Namespaces and their mounts live only as long as the processes in them, so a dead node leaves
neither. The bridge is the one thing that must be removed; a bridge left by a lab that was
killed altogether is removed by the next lab that gets its number.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from slurmmesh.errors import LabError, UsageError
from slurmmesh.lab.ports import Claim, try_claim
from slurmmesh.lab.processes import mount, unshare

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MS_REC = 16384
_MS_SLAVE = 1 << 19

# The range for benchmarks of network gear (RFC 2544): 512 nets no real machine is in.
_NETS = 512
_IP_TIMEOUT_S = 30


class LabNetwork:
    """The numbered network of one lab; only root can make one.

    Raises:
        UsageError: not root.
        LabError: all numbers are taken.
    """

    def __init__(self, ip: str) -> None:
        if os.geteuid() != 0:
            raise UsageError(
                "network namespaces need root: run the lab as root, or without netns (--netns)"
            )
        self._ip = ip
        self._number, self._claim = _claim_number()

    @property
    def bridge(self) -> str:
        return f"slmesh{self._number}"

    @property
    def controller(self) -> str:
        return self._address(254)

    def node_address(self, index: int) -> str:
        return self._address(index + 1)

    def _address(self, host: int) -> str:
        return f"198.{18 + self._number // 256}.{self._number % 256}.{host}"

    def _cable(self, index: int) -> str:
        return f"slm{self._number}n{index + 1}"

    def create(self) -> None:
        """Raises LabError: the kernel refused; the text has its words."""
        self.remove()
        self._run(
            f"link add {self.bridge} type bridge",
            f"address add {self.controller}/24 dev {self.bridge}",
            f"link set {self.bridge} up",
        )

    def connect(self, index: int, pid: int) -> None:
        """Lay the cable from the bridge to ``eth0`` of the namespace that ``pid`` is in."""
        cable = self._cable(index)
        self.disconnect(index)
        self._run(
            f"link add {cable} type veth peer name eth0 netns {pid}",
            f"link set {cable} master {self.bridge} up",
        )

    def configure_inside(self, index: int) -> None:
        """Called in the node's own namespace, after ``connect``."""
        self._run(
            "link set lo up",
            f"address add {self.node_address(index)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {self.controller}",
        )

    def cut(self, index: int) -> None:
        """A cable that is gone, as with the last process of its namespace, is cut."""
        self._run(f"link set {self._cable(index)} down", or_gone=True)

    def heal(self, index: int) -> None:
        self._run(f"link set {self._cable(index)} up")

    def disconnect(self, index: int) -> None:
        """Remove the cable, if the kernel has not done so with the namespace at its other end."""
        self._run(f"link delete {self._cable(index)}", or_gone=True)

    def remove(self) -> None:
        """Remove the bridge and all cables, whatever is left of them."""
        own = [self.bridge, *_links(f"slm{self._number}n")]
        self._run(*(f"link delete {name}" for name in own), or_gone=True)

    def close(self) -> None:
        """Let another lab have the number; call after ``remove``."""
        self._claim.close()

    def _run(self, *commands: str, or_gone: bool = False) -> None:
        run_ip(self._ip, commands, or_gone=or_gone)


def run_ip(ip: str, commands: Iterable[str], *, or_gone: bool = False) -> None:
    """Run ``ip`` commands in one process, up to one that fails.

    Args:
        or_gone: run them all; that the device of one is not there (any more) is no failure.

    Raises:
        LabError: one failed.
    """
    argv = [ip, *(["-force"] if or_gone else []), "-batch", "-"]
    text = "".join(f"{command}\n" for command in commands)
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=_IP_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{ip} did not run: {error}") from error
    if done.returncode != 0 and not (or_gone and _only_gone(done.stderr)):
        raise LabError(f"the network of the lab: {done.stderr.strip()}\n{text}")


def _only_gone(words: str) -> bool:
    """Whether each command that failed did so for want of its device; takes stderr of a batch."""
    # The second: gone between the look for its number and the deed.
    gone = words.count("Cannot find device ") + words.count(": No such device")
    return 0 < gone == words.count("Command failed ")


def enter_own_namespaces(hostname: str, etc: Path) -> None:
    """Move this process to a namespace of its own for network, host name and mounts.

    The files in ``etc`` (see ``write_etc``) lie over those of ``/etc`` there.
    """
    unshare(_CLONE_NEWNET | _CLONE_NEWUTS | _CLONE_NEWNS)
    socket.sethostname(hostname)
    # Mounts made on the machine later are still seen in the node, none of the node's outside.
    mount("none", "/", _MS_SLAVE | _MS_REC)
    for file in etc.iterdir():
        if os.path.exists(f"/etc/{file.name}"):
            mount(str(file), f"/etc/{file.name}", _MS_BIND)


def write_etc(etc: Path, controller: str, names: Sequence[str], addresses: Sequence[str]) -> None:
    """Write what nodes see of ``/etc``: who is who, and no name server.

    No server outside the lab can be reached, and a resolver that tries one waits ten seconds.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost", f"{controller} {socket.gethostname()}"]
    lines += [f"{address} {name}" for name, address in zip(names, addresses, strict=True)]
    etc.mkdir(mode=0o755)
    (etc / "hosts").write_text("".join(f"{line}\n" for line in lines))
    (etc / "resolv.conf").write_text("# a node of a lab has no name server\n")


def _claim_number() -> tuple[int, Claim]:
    first = os.getpid() % _NETS
    for offset in range(_NETS):
        number = (first + offset) % _NETS
        claim = try_claim("net", number)
        if claim is not None:
            return number, claim
    raise LabError(f"{_NETS} labs with network namespaces are running; end one")


def _links(prefix: str) -> list[str]:
    return sorted(name for name in os.listdir("/sys/class/net") if name.startswith(prefix))
