"""MariaDB for slurmdbd: a database in the lab's folder, reached only through a socket there."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping

from slurmmesh.errors import LabError
from slurmmesh.lab.spec import Layout

_INSTALL_TIMEOUT_S = 120


def install_command(layout: Layout, programs: Mapping[str, str], user: str) -> list[str]:
    return [
        programs["mariadb-install-db"],
        "--no-defaults",
        f"--user={user}",
        f"--datadir={layout.database}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
        # Leaves out the check that the machine's host name resolves.
        "--force",
    ]


def server_command(layout: Layout, programs: Mapping[str, str], user: str) -> list[str]:
    return [
        programs["mariadbd"],
        "--no-defaults",
        f"--user={user}",
        f"--datadir={layout.database}",
        "--skip-networking",
        f"--socket={layout.database_socket}",
        f"--pid-file={layout.run}/mariadbd.pid",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=16M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-lock-wait-timeout=900",
        "--performance-schema=OFF",
        "--key-buffer-size=1M",
        "--max-connections=20",
        "--skip-name-resolve",
    ]


def database_client_environment(layout: Layout) -> dict[str, str]:
    """slurmdbd.conf cannot name a socket; MariaDB's client library takes it from here."""
    return {"MYSQL_UNIX_PORT": str(layout.database_socket)}


def create_database(layout: Layout, programs: Mapping[str, str], user: str) -> None:
    """Raises LabError: it could not be created; with the last words of the program that tried."""
    output = layout.output("mariadb-install-db")
    started = time.monotonic()
    try:
        with open(output, "wb") as file:
            done = subprocess.run(
                install_command(layout, programs, user),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=_INSTALL_TIMEOUT_S,
            )
    except subprocess.TimeoutExpired:
        raise LabError(
            f"the accounting database was not there after {time.monotonic() - started:.0f} s"
        ) from None
    if done.returncode != 0:
        raise LabError(
            "the accounting database could not be created:\n"
            + output.read_text(errors="replace")[-2000:]
        )
