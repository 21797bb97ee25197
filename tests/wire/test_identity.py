"""Identity: who is let in, over real sockets."""

from __future__ import annotations

import os
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from cryptography import x509

from slurmmesh.errors import IdentityError, UsageError
from slurmmesh.wire.identity import (
    Credentials,
    JobAuthority,
    JobContext,
    Revoked,
    client_context,
    handshake_error,
    peer_name,
    role_of,
    server_context,
)

DAY_S = 86400.0
JOB = JobAuthority("1234")
CONTROLLER = JOB.issue("controller")
HOST = JOB.issue("host-3")


class Door:
    """A TCP listener that takes one client, as the controller does.

    ``peer`` is the certified name of who got in, or the error that kept it out; ``read`` what
    it sent. Nothing is read before the peer is known.
    """

    def __init__(self, context: ssl.SSLContext, *roles: str) -> None:
        self._context = context
        self._roles = roles
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.peer: str | Exception = ""
        self.read = b""
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Door:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)
        self._listener.close()
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        raw, _ = self._listener.accept()
        raw.settimeout(20)
        try:
            with raw, self._context.wrap_socket(raw, server_side=True) as tls:
                self.peer = peer_name(tls, *self._roles)
                tls.sendall(b"welcome")
                self.read = tls.recv(100)
        except (OSError, IdentityError) as error:
            self.peer = error


def knock(address: tuple[str, int], context: ssl.SSLContext) -> str:
    """Connect as a member does; the server's certified name once it has let us in."""
    with socket.create_connection(address, timeout=20) as raw, context.wrap_socket(raw) as tls:
        name = peer_name(tls)
        assert tls.version() == "TLSv1.3"
        if tls.recv(7) != b"welcome":
            raise ConnectionError("not let in")
        assert tls.session is None or not tls.session.has_ticket
        assert not tls.session_reused
        tls.sendall(b"hello")
        return name


def test_members_of_a_job_know_each_other():
    with Door(server_context(CONTROLLER)) as door:
        assert knock(door.address, client_context(HOST)) == "controller"
    assert door.peer == "host-3"
    assert door.read == b"hello"


def test_credentials_from_another_process_work(tmp_path):
    """Credentials travel as bytes: a proc gets them without any file."""
    program = (
        "import pickle, sys, socket, os\n"
        "from slurmmesh.wire import identity\n"
        "creds, address = pickle.loads(sys.stdin.buffer.read())\n"
        "raw = socket.create_connection(address, timeout=20)\n"
        "with identity.client_context(creds).wrap_socket(raw) as tls:\n"
        "    print(identity.peer_name(tls, 'controller'), tls.recv(7).decode())\n"
        "assert 'cryptography' not in sys.modules\n"
        "assert not [f for f in os.listdir('/proc/self/fd')\n"
        "            if os.path.islink(f'/proc/self/fd/{f}')\n"
        "            and 'identity' in os.readlink(f'/proc/self/fd/{f}')]\n"
    )
    with Door(server_context(CONTROLLER), "proc") as door:
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=pickle.dumps((JOB.issue("proc-17"), door.address)),
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            timeout=60,
        )
    assert done.stdout.decode().split() == ["controller", "welcome"], done.stderr.decode()
    assert door.peer == "proc-17"
    assert list(tmp_path.iterdir()) == []


def mix(ours: Credentials, theirs: Credentials) -> Credentials:
    """A stranger who knows our authority's certificate, which is no secret, but has no key."""
    return replace(theirs, ca_pem=ours.ca_pem)


@pytest.mark.parametrize("issuer", [JobAuthority("5678"), JobAuthority("1234")])
def test_certificates_of_another_job_are_refused(issuer):
    stranger = issuer.issue("host-3")
    with (
        Door(server_context(CONTROLLER)) as door,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        knock(door.address, client_context(stranger))
    assert isinstance(door.peer, ssl.SSLError)

    # The server must refuse on its own account, whatever the client is ready to accept.
    with Door(server_context(CONTROLLER)) as door, pytest.raises((OSError, IdentityError)):
        knock(door.address, client_context(mix(CONTROLLER, stranger)))
    assert isinstance(door.peer, ssl.SSLCertVerificationError)
    assert door.read == b""

    # And so must the client.
    with (
        Door(server_context(mix(HOST, stranger))) as door,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        knock(door.address, client_context(HOST))


def test_a_client_without_certificate_is_refused():
    context = JobContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=CONTROLLER.ca_pem.decode())
    context.job_id, context.revoked = "1234", Revoked()
    with Door(server_context(CONTROLLER)) as door, pytest.raises(OSError):  # noqa: PT011
        knock(door.address, context)
    assert isinstance(door.peer, ssl.SSLError)
    assert "did not return a certificate" in str(door.peer)
    assert "did not prove" in str(handshake_error(door.peer, "10.0.0.1"))


@pytest.mark.parametrize("offset_s", [-30 * DAY_S, 30 * DAY_S])
def test_expired_and_future_certificates_are_refused(offset_s):
    """By the server and by the client. The authority is the same: only the times differ."""
    authority = JobAuthority("1234", clock=lambda: time.time() + offset_s, lifetime_s=DAY_S)
    host, controller = authority.issue("host-3"), authority.issue("controller")
    for server, client in ((controller, HOST), (CONTROLLER, host)):
        trusting = authority.issue("x").ca_pem + CONTROLLER.ca_pem
        server_side = server_context(replace(server, ca_pem=trusting))
        client_side = client_context(replace(client, ca_pem=trusting))
        with Door(server_side) as door, pytest.raises((OSError, IdentityError)) as caught:
            knock(door.address, client_side)
        refusal = caught.value if server is controller else door.peer
        assert isinstance(refusal, ssl.SSLCertVerificationError)
        assert "expired" in str(refusal) or "not yet valid" in str(refusal)
        assert "clocks" in str(handshake_error(refusal, "10.0.0.1"))


def test_a_clock_that_is_a_little_off_does_no_harm():
    for offset_s in (-1800.0, 1800.0):
        authority = JobAuthority("1234", clock=lambda by=offset_s: time.time() + by)
        with Door(server_context(authority.issue("controller"))) as door:
            name = knock(door.address, client_context(authority.issue("host-0")))
        assert name == "controller"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
def test_older_tls_is_refused(version):
    context = client_context(HOST)
    context.minimum_version = version
    context.maximum_version = version
    with Door(server_context(CONTROLLER)) as door, pytest.raises(ssl.SSLError):
        knock(door.address, context)
    assert "UNSUPPORTED_PROTOCOL" in str(door.peer)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x80\x05cos\nsystem\n(S'true'\ntR.",
        os.urandom(4096),
        b"\x16\x03\x01\xff\xff" + b"\0" * 70000,
        b"\x16",
        b"",
    ],
    ids=["http", "pickle", "noise", "huge record", "a byte", "nothing"],
)
def test_what_is_no_handshake_is_refused(sent):
    with (
        Door(server_context(CONTROLLER)) as door,
        socket.create_connection(door.address, timeout=20) as raw,
    ):
        try:
            raw.sendall(sent)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass
        except OSError:
            pass  # the server closed with our bytes unread
    assert isinstance(door.peer, OSError)
    assert isinstance(handshake_error(door.peer, "10.0.0.1"), IdentityError)
    assert door.read == b""


def test_sessions_are_not_resumed():
    context = client_context(HOST)
    with Door(server_context(CONTROLLER)) as door:
        knock(door.address, context)
    with (
        Door(server_context(CONTROLLER)) as door,
        socket.create_connection(door.address, timeout=20) as raw,
        context.wrap_socket(raw) as tls,
    ):
        tls.recv(7)
        assert tls.session is None or tls.session.ticket_lifetime_hint == 0
        assert not tls.session_reused
    assert server_context(CONTROLLER).num_tickets == 0


def memory_pair(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ...]:
    """A handshake without sockets, as asyncio does it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server),
    )
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends


def test_roles():
    server, client = memory_pair(server_context(CONTROLLER), client_context(HOST))
    assert peer_name(server, "host") == "host-3"
    assert peer_name(server, "host-3") == "host-3"
    assert peer_name(client, "controller") == "controller"
    assert role_of("proc-17") == "proc"
    for wrong in ("controller", "host-4", "hos", "proc"):
        with pytest.raises(IdentityError, match=f"the peer is host-3, but only {wrong}"):
            peer_name(server, wrong)


def test_several_roles():
    server, _ = memory_pair(server_context(CONTROLLER), client_context(HOST))
    assert peer_name(server, "controller", "host") == "host-3"
    with pytest.raises(IdentityError, match="but only controller or proc may be here"):
        peer_name(server, "controller", "proc")


def test_a_revoked_member_is_refused_by_all_that_know():
    authority = JobAuthority("1234")
    controller, host = authority.issue("controller"), authority.issue("host-3")
    elsewhere = pickle.loads(pickle.dumps(controller))  # as it was sent to another process before
    server, client = memory_pair(server_context(controller), client_context(host))
    other, _ = memory_pair(server_context(elsewhere), client_context(host))
    assert peer_name(server) == peer_name(other) == "host-3"
    authority.revoke("host-3")
    with pytest.raises(IdentityError, match="the peer is host-3, whose certificate is revoked"):
        peer_name(server)
    assert peer_name(client) == "controller"
    assert peer_name(other) == "host-3"
    elsewhere.revoked.add(pickle.loads(pickle.dumps(authority.revoked)))
    with pytest.raises(IdentityError, match="revoked"):
        peer_name(other)
    later = pickle.loads(pickle.dumps(authority.issue("host-4")))
    assert "host-3" in later.revoked
    assert "host-30" not in later.revoked
    with pytest.raises(UsageError, match="host-3 is revoked"):
        authority.issue("host-3")


def test_the_job_in_the_certificate_is_compared():
    server, _ = memory_pair(server_context(CONTROLLER), client_context(HOST))
    server.context.job_id = "5678"
    with pytest.raises(IdentityError, match="belongs to job 1234, this is job 5678"):
        peer_name(server)


def test_a_peer_is_unknown_before_the_handshake():
    end = client_context(HOST).wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())
    with pytest.raises(IdentityError, match="before the handshake"):
        peer_name(end)
    foreign = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="x"
    )
    with pytest.raises(IdentityError, match="not made with a context of this job"):
        peer_name(foreign)


def test_what_a_certificate_says():
    now = time.time()
    certificate = x509.load_pem_x509_certificate(HOST.cert_key_pem)
    assert certificate.subject.rfc4514_string() == "CN=host-3,O=1234"
    begin = certificate.not_valid_before_utc.timestamp()
    end = certificate.not_valid_after_utc.timestamp()
    assert 600 < now - begin < DAY_S / 2
    assert 0 < end - now <= 7 * DAY_S
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca
    short = x509.load_pem_x509_certificate(
        JobAuthority("1", lifetime_s=60).issue("host-0").cert_key_pem
    )
    assert short.not_valid_after_utc.timestamp() < now + 120


def test_the_authority_outlives_its_members():
    """A member certified late in a job must not depend on an authority that ended before it."""
    authority = JobAuthority("1234", lifetime_s=DAY_S)
    host = authority.issue("host-0")
    ends = [
        x509.load_pem_x509_certificate(pem).not_valid_after_utc
        for pem in (host.ca_pem, host.cert_key_pem)
    ]
    assert (ends[0] - ends[1]).days > 300


def test_a_member_cannot_certify_others():
    """A stolen host key must not be worth a whole job: what it signs is not believed."""
    forger = JobAuthority("1234")
    forger._certificate = x509.load_pem_x509_certificate(HOST.cert_key_pem)
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    forger._key = load_pem_private_key(HOST.cert_key_pem, None)
    forged = forger.issue("controller")
    chained = replace(
        forged, ca_pem=HOST.ca_pem, cert_key_pem=forged.cert_key_pem + HOST.cert_key_pem
    )
    with (
        Door(server_context(chained)) as door,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        knock(door.address, client_context(HOST))


def test_the_key_is_never_printed():
    assert "PRIVATE" not in repr(HOST)
    assert "PRIVATE" not in str(vars(JOB))


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", ".hidden", "a b", "x" * 65, "ca", "authority", "hé"]
)
def test_bad_names_are_refused(name, tmp_path):
    with pytest.raises(UsageError, match="cannot name a member"):
        JOB.issue(name)
    with pytest.raises(UsageError, match="cannot name a member"):
        replace(HOST, name=name).write(tmp_path / "identity")


@pytest.mark.parametrize("job_id", ["", "x" * 65, "a b", "a\n", "é"])
def test_bad_job_ids_are_refused(job_id):
    with pytest.raises(UsageError, match="visible ASCII"):
        JobAuthority(job_id)


@pytest.mark.parametrize("lifetime_s", [0, -1, float("nan")])
def test_bad_lifetimes_are_refused(lifetime_s):
    with pytest.raises(UsageError, match="lifetime above 0"):
        JobAuthority("1", lifetime_s=lifetime_s)


def test_the_longest_names_work():
    authority = JobAuthority("j" * 64)
    members = authority.issue("a" * 64), authority.issue("b" * 64)
    server, _ = memory_pair(server_context(members[0]), client_context(members[1]))
    assert peer_name(server) == "b" * 64


@pytest.mark.parametrize(
    "broken",
    [
        replace(HOST, ca_pem=b""),
        replace(HOST, ca_pem=b"\xff\xfe"),
        replace(HOST, ca_pem=b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        replace(HOST, cert_key_pem=b""),
        replace(HOST, cert_key_pem=HOST.cert_key_pem[:300]),
        replace(HOST, cert_key_pem=HOST.cert_key_pem.split(b"-----BEGIN PRIVATE")[0]),
    ],
)
def test_broken_credentials_are_refused(broken):
    with pytest.raises(IdentityError, match="credentials of host-3 are broken"):
        client_context(broken)
