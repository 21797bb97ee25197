"""Who may take part in a job: its own certificate authority, and mutual TLS 1.3 by it.

Each job makes an authority in the memory of its controller and gives each member a
certificate that names the job (organization) and the member (common name). A member trusts
this one authority and nothing else: not the machine's certificates, not another job's, even
one whose names are the same. Names tell the role: ``controller``, ``host-3``, ``proc-17``.

In TLS 1.3 a client is through with its handshake before the server has judged its
certificate: it is accepted when the server has sent its first bytes, not before.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import socket
import ssl
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurmmesh.errors import IdentityError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate

DEFAULT_LIFETIME_S = 7 * 86400.0
CLOCK_SKEW_S = 3600.0
_AUTHORITY_LIFETIME_S = 366 * 86400.0

_CA_FILE = "ca.pem"
_AUTHORITY = "authority"
_RESERVED = {"ca", _AUTHORITY}
_MAX_FILE_BYTES = 64 * 1024
# A name is part of a path, and X.509 limits names to 64 characters.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_JOB_ID = re.compile(r"[\x21-\x7e]{1,64}")


class Revoked:
    """Names of members that are members no longer, however good their certificates.

    One object is shared by all in a process that goes by the same credentials: what is added is
    known to each of its connections at once. A pickled copy knows what was revoked until then;
    the controller sends one to its hosts, and they to their procs, whenever there is news.
    A name that is revoked is never certified again.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)

    def add(self, names: Iterable[str]) -> None:
        """Revoke these too. From one thread at a time; others may look meanwhile."""
        self._names |= frozenset(names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)


@dataclass(frozen=True)
class Credentials:
    """What one member needs to prove itself and to judge others. The key is never printed.

    Attributes:
        ca_pem: the certificate of the job's authority.
        cert_key_pem: the member's certificate and private key.
        name: the member's name, as certified.
        revoked: whom to refuse all the same. It is not written to files.
    """

    ca_pem: bytes
    cert_key_pem: bytes = field(repr=False)
    name: str
    revoked: Revoked = field(default_factory=Revoked, repr=False, compare=False)

    def write(self, folder: Path | str) -> Path:
        """Write ``ca.pem`` and ``<name>.pem`` (0600) to ``folder``; return the latter's path.

        The folder is made (0700) if missing. A reader sees an old file or the new one whole.

        Raises:
            IdentityError: the folder is not this user's own, or others may look into it.
            OSError: it cannot be written.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        with _private_folder(folder) as fd:
            _write_file(fd, _CA_FILE, self.ca_pem)
            _write_file(fd, _file_of(self.name), self.cert_key_pem)
        return Path(folder, _file_of(self.name))

    @classmethod
    def read(cls, folder: Path | str, name: str) -> Credentials:
        """Read what ``write`` wrote for ``name``.

        Raises:
            IdentityError: folder or file are missing, not this user's own, or open to others.
        """
        with _private_folder(folder) as fd:
            ca_pem = _read_file(fd, folder, _CA_FILE)
            return cls(ca_pem, _read_file(fd, folder, _file_of(name)), name)


class JobAuthority:
    """The certificate authority of one job. Its private key stays in this object.

    Args:
        job_id: goes into each certificate; 1 to 64 visible ASCII characters.
        lifetime_s: how long a member's certificate is valid, in seconds. It bounds when links
            can be made, not how long they last; give the job's time limit where there is one.
            The authority itself lasts a year or longer, so members can be certified anew.
        clock: seconds since the epoch. Certificates begin an hour before, so that a node
            whose clock is behind accepts them.

    Attributes:
        revoked: known to all that this authority certifies in this process.

    Raises:
        UsageError: a job id that cannot be certified, or a lifetime that is not positive.
    """

    def __init__(
        self,
        job_id: str,
        *,
        lifetime_s: float = DEFAULT_LIFETIME_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not _JOB_ID.fullmatch(job_id):
            raise UsageError(f"job id {job_id!r} must be 1 to 64 visible ASCII characters")
        if not lifetime_s > 0:
            raise UsageError(f"certificates need a lifetime above 0 s, not {lifetime_s}")
        # Imported here: only the controller issues certificates, each proc pays for imports.
        from cryptography.hazmat.primitives.asymmetric import ec

        self.job_id = job_id
        self.revoked = Revoked()
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._certify(_AUTHORITY, self._key.public_key(), is_authority=True)

    def issue(self, name: str) -> Credentials:
        """New credentials for a member of this name, with a key of their own.

        Raises UsageError if the name is not 1 to 64 letters, digits, ``.``, ``_`` or ``-``, or
        is revoked.
        """
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric import ec

        _file_of(name)
        if name in self.revoked:
            raise UsageError(f"{name} is revoked in this job and cannot be certified again")
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certify(name, key.public_key(), is_authority=False)
        key_pem = key.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
        )
        pem = form.Encoding.PEM
        return Credentials(
            self._certificate.public_bytes(pem),
            certificate.public_bytes(pem) + key_pem,
            name,
            self.revoked,
        )

    def revoke(self, name: str) -> None:
        """Do not let this member in any more, and certify nobody under its name again."""
        self.revoked.add([name])

    def _certify(
        self, name: str, public_key: EllipticCurvePublicKey, *, is_authority: bool
    ) -> Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        def named(common_name: str) -> x509.Name:
            return x509.Name(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.job_id),
                    x509.NameAttribute(NameOID.COMMON_NAME, common_name),
                ]
            )

        lifetime_s = self._lifetime_s
        if is_authority:
            lifetime_s = max(lifetime_s, _AUTHORITY_LIFETIME_S)
        now = datetime.datetime.fromtimestamp(self._clock(), datetime.timezone.utc)
        own = self._key.public_key()
        usage = x509.KeyUsage(
            digital_signature=not is_authority,
            key_cert_sign=is_authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(_AUTHORITY))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(seconds=CLOCK_SKEW_S))
            .not_valid_after(now + datetime.timedelta(seconds=lifetime_s))
            .add_extension(
                x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None),
                critical=True,
            )
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
        )
        if not is_authority:
            # Each member may be the one that dials and the one that is dialled.
            both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=True)
        return builder.sign(self._key, hashes.SHA256())


class JobContext(ssl.SSLContext):
    """An SSL context that knows the job it is for, and who is no member of it any more."""

    job_id: str
    revoked: Revoked


def server_context(credentials: Credentials) -> JobContext:
    """For the side that accepts: TLS 1.3 only, asks each client for a certificate of the job.

    Raises IdentityError if the credentials are broken.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, credentials)
    # A ticket would let a session go on without its certificate, past its lifetime.
    context.num_tickets = 0
    return context


def client_context(credentials: Credentials) -> JobContext:
    """For the side that connects: TLS 1.3 only, shows its certificate, asks for the server's.

    Host names are not looked at: the certified name says who a peer is, see ``peer_name``.
    Raises IdentityError if the credentials are broken.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, credentials)


def peer_name(connection: ssl.SSLObject | ssl.SSLSocket, *roles: str) -> str:
    """The certified name of the other side, after the handshake.

    Args:
        roles: what the peer must be one of: its name or the part before the first ``-``
            (``"host"`` for ``host-3``); none: any member.

    Raises:
        IdentityError: it showed no certificate, one of another job or one that is revoked, or
            has another role.
    """
    context = connection.context
    if not isinstance(context, JobContext):
        raise IdentityError("the connection was not made with a context of this job")
    try:
        certificate = connection.getpeercert()
    except ValueError:
        raise IdentityError("the peer is unknown before the handshake is done") from None
    if not certificate:
        raise IdentityError("the peer showed no certificate")
    job_id = _subject(certificate, "organizationName")
    name = _subject(certificate, "commonName")
    if job_id != context.job_id:
        raise IdentityError(f"the peer belongs to job {job_id}, this is job {context.job_id}")
    if name in context.revoked:
        raise IdentityError(f"the peer is {name}, whose certificate is revoked")
    if roles and name not in roles and role_of(name) not in roles:
        raise IdentityError(f"the peer is {name}, but only {' or '.join(roles)} may be here")
    return name


def role_of(name: str) -> str:
    """The part of a member's name that says what it is: ``host`` for ``host-3``."""
    return name.split("-", 1)[0]


def handshake_error(error: Exception, address: str) -> IdentityError:
    """What a failed handshake means, in words a user can act on."""
    text = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
    text = text.replace("_", " ").lower()
    hint = ""
    if "not yet valid" in text or "expired" in text:
        hint = f"; compare the clocks of both nodes (this one says {time.ctime()})"
    elif "signature" in text or "issuer" in text or "self-signed" in text or "unknown ca" in text:
        hint = "; it belongs to another job, or this job's certificates were replaced"
    elif "http" in text or "wrong version" in text or "protocol" in text:
        hint = "; it is no member of a slurmmesh job"
    return IdentityError(f"{address} did not prove that it belongs to this job: {text}{hint}")


def _context(protocol: int, credentials: Credentials) -> JobContext:
    context = JobContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(cadata=credentials.ca_pem.decode("ascii"))
        context.revoked = credentials.revoked
        context.job_id = _subject(context.get_ca_certs()[0], "organizationName")
        _load_certificate(context, credentials.cert_key_pem)
    except (ssl.SSLError, ValueError, IndexError) as error:
        raise IdentityError(f"the credentials of {credentials.name} are broken: {error}") from error
    return context


def _load_certificate(context: ssl.SSLContext, cert_key_pem: bytes) -> None:
    """Load certificate and key. Only a path is taken, so the bytes get a nameless file."""
    fd = os.memfd_create("slurmmesh-identity", os.MFD_CLOEXEC)
    try:
        view = memoryview(cert_key_pem)
        while view:
            view = view[os.write(fd, view) :]
        # An encrypted key would make OpenSSL ask on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{fd}", password=lambda: "")
    finally:
        os.close(fd)


def _subject(certificate: dict[str, Any], key: str) -> str:
    values = [v for part in certificate.get("subject", ()) for k, v in part if k == key]
    if len(values) != 1:
        raise IdentityError(f"the certificate has {len(values)} entries for {key}, not one")
    return values[0]


def _file_of(name: str) -> str:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise UsageError(
            f"{name!r} cannot name a member of a job: use 1 to 64 letters, digits, '.', '_' or "
            f"'-', and none of {', '.join(sorted(_RESERVED))}"
        )
    return f"{name}.pem"


@contextlib.contextmanager
def _private_folder(folder: Path | str) -> Iterator[int]:
    """A descriptor of ``folder``, which must be this user's and closed to others."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise IdentityError(f"{folder} holds no credentials: {error.strerror}") from error
    try:
        _check_private(os.fstat(fd), folder, "700")
        yield fd
    finally:
        os.close(fd)


def _check_private(info: os.stat_result, path: Path | str, mode: str) -> None:
    if info.st_uid != os.geteuid():
        raise IdentityError(f"{path} belongs to uid {info.st_uid}, not to this user")
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise IdentityError(
            f"{path} is open to other users (mode {stat.S_IMODE(info.st_mode):o}): "
            f"they may have read or replaced it; chmod {mode} and start the job anew"
        )


def _write_file(folder_fd: int, name: str, content: bytes) -> None:
    temporary = f".{name}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=folder_fd)
    try:
        with open(fd, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder_fd)
        raise


def _read_file(folder_fd: int, folder: Path | str, name: str) -> bytes:
    path = Path(folder, name)
    # Not blocking: a pipe in the place of the file must not hang the reader.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder_fd)
    except OSError as error:
        raise IdentityError(f"{path} cannot be read: {error.strerror}") from error
    with open(fd, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise IdentityError(f"{path} is no regular file")
        _check_private(info, path, "600")
        content = file.read(_MAX_FILE_BYTES + 1)
    if not content or len(content) > _MAX_FILE_BYTES:
        raise IdentityError(f"{path} is {'empty' if not content else 'too large'}")
    return content


def same_user(sock: socket.socket) -> str:
    """Name the peer of a unix socket, which must run as our own user.

    Raises:
        IdentityError: it runs as another user.
    """
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid != os.getuid():
        raise IdentityError(f"refused pid {pid}: it runs as uid {uid}")
    return f"pid-{pid}"
