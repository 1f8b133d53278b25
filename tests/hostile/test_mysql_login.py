"""A server that greets or lets in as none should: one line, code 3, and the password stays here."""

import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.local.certificates import write_certificates

from .commands import Commands
from .mysql_server import CACHING_SHA2, NATIVE, SALT, MysqlServer, Peer

PASSWORD = b"hush-hush"
NOT_MYSQL = "what it sends is not what MySQL's protocol has there"
IN_CLEAR = "the server asks for the password in clear"
ITSELF = "the server asks for the password itself"


Refused = Callable[..., None]


@pytest.fixture
def refused(commands: Commands) -> Refused:
    """Reads a server's log with ``millrace binlog``, which must give up with these words."""

    def check(server: MysqlServer, *words: str, options: str = "") -> None:
        limits = {"MILLRACE_MYSQL_CONNECT_TIMEOUT_S": "1"}
        with server:
            done = commands.run("binlog", server.url(options=options), settings=limits)
        done.says(3, *words)
        assert not any(PASSWORD in sent for sent in server.received), "the password went out"

    return check


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    write_certificates(folder)
    return folder


@pytest.fixture
def tls(certificates: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server-cert.pem", certificates / "server-key.pem")
    return context


# -- greetings --------------------------------------------------------------------------------------


def greeting(payload: bytes) -> Callable[[MysqlServer, Peer], None]:
    def greet(self: MysqlServer, peer: Peer) -> None:
        peer.send(payload)

    return greet


def not_in_packets(data: bytes) -> Callable[[MysqlServer, Peer], None]:
    def greet(self: MysqlServer, peer: Peer) -> None:
        peer.raw(data)

    return greet


@pytest.mark.parametrize(
    "greet",
    [
        pytest.param(greeting(b""), id="empty"),
        pytest.param(greeting(b"\x0a8."), id="short"),
        pytest.param(greeting(b"\x0a8.0.15\0\1\0\0\0saltsalt\0\xff\xff"), id="cut after the capabilities"),
        pytest.param(greeting(b"\x093.20.0\0\1\0\0\0saltsalt\0"), id="protocol 9"),
        pytest.param(greeting(b"\xff"), id="an error of one byte"),
        pytest.param(greeting(b"\xff\x10\x04#\xff\xfe\xfd\xfc\xfbwhat?"), id="an error with a garbled state"),
        pytest.param(not_in_packets(b"\x00\x00\x00\x07"), id="out of order"),
        pytest.param(not_in_packets(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n" * 2), id="another protocol"),
    ],
)
def test_greetings(greet: Callable[[MysqlServer, Peer], None], refused: Refused) -> None:
    refused(MysqlServer(greet=greet), "127.0.0.1:")


def test_a_version_that_is_none(refused: Refused) -> None:
    server = MysqlServer()
    server.version = "abc\x1b[2J"
    refused(server, r"it greets as version 'abc\x1b[2J' with protocol 10, expected")


def test_a_plug_in_that_is_no_text(refused: Refused) -> None:
    server = MysqlServer()
    server.plugin = b"\xff\xfe"
    refused(server, NOT_MYSQL)


def test_an_error_with_escape_sequences(refused: Refused) -> None:
    def greet(self: MysqlServer, peer: Peer) -> None:
        peer.error(1040, "\x1b]0;owned\x07\r\nerror: all is well \u202e" + "x" * 10_000)

    refused(MysqlServer(greet=greet), r"\x1b]0;owned\x07\x0d\x0aerror: all is well \u202e", "max_connections")


@pytest.mark.parametrize(
    ("greet", "words"),
    [
        (MysqlServer.flood, "it sends a packet that is too large, while waiting for its greeting"),
        (MysqlServer.drip, NOT_MYSQL),
        (lambda self, peer: peer.raw(b"\x40\0\0\0") or self.drip(peer), "no answer within 1 s while waiting"),
        (lambda self, peer: self.silent(), "no answer within 1 s while waiting for its greeting"),
    ],
    ids=["flood", "zeros", "dripping", "silence"],
)
def test_greetings_without_end(
    greet: Callable[[MysqlServer, Peer], None], words: str, refused: Refused
) -> None:
    refused(MysqlServer(greet=greet), words)


# -- authentication ---------------------------------------------------------------------------------


def switch(name: bytes, data: bytes = SALT + b"\0") -> Callable[[MysqlServer, Peer, bytes], None]:
    """Ask for another method, and be content with whatever comes."""

    def authenticate(self: MysqlServer, peer: Peer, response: bytes) -> None:
        peer.send(b"\xfe" + name + b"\0" + data)
        peer.read()
        peer.ok()

    return authenticate


def full_authentication(self: MysqlServer, peer: Peer, response: bytes) -> None:
    """Want more than the scramble of caching_sha2_password; offer a key to whoever asks for one."""
    peer.send(b"\xfe" + CACHING_SHA2 + b"\0" + SALT + b"\0")
    peer.read()
    peer.send(b"\1\4")
    if peer.read() == b"\2":
        peer.send(b"\1-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----\n")
        peer.read()
    peer.ok()


def say(payload: bytes) -> Callable[[MysqlServer, Peer, bytes], None]:
    def authenticate(self: MysqlServer, peer: Peer, response: bytes) -> None:
        peer.send(payload)
        peer.read()

    return authenticate


@pytest.mark.parametrize(
    ("authenticate", "words"),
    [
        (switch(b"mysql_clear_password", b""), f"{IN_CLEAR} (mysql_clear_password), and there is no TLS"),
        (switch(b"dialog", b"\4Password: "), f"{IN_CLEAR} (dialog), and there is no TLS"),
        (switch(b"mysql_old_password"), "the server asks for mysql_old_password"),
        (say(b"\xfe"), NOT_MYSQL),
        (switch(b"sha256_password"), f"{ITSELF} (sha256_password), and there is no TLS"),
        (full_authentication, f"{ITSELF} (caching_sha2_password), and there is no TLS"),
        (switch(b"\xff\x1b[31m"), r"the authentication plugin '�\x1b[31m', which Millrace does not have"),
        (switch(b"auth_gssapi_client"), "the authentication plugin 'auth_gssapi_client'"),
        (switch(b"client_ed25519"), "needs the Python package PyNaCl"),
        (say(b"\1\4"), "it continues with a login that has no further step"),
        (say(b"\xff\x15\x04#\xff\xff\xff\xff\xffabc"), NOT_MYSQL),
        (say(b"\xff"), NOT_MYSQL),
        (say(b""), NOT_MYSQL),
        (lambda self, peer, _: peer.send(b"\0\0\0\2\0\0\0", sequence=9), NOT_MYSQL),
        (lambda self, peer, _: self.flood(peer), "it sends a packet that is too large, while logging in"),
        (lambda self, peer, _: self.silent(), "no answer within 1 s while logging in"),
        (
            lambda self, peer, _: peer.raw(b"\x07\0\0\2") or self.drip(peer),
            "no answer within 1 s while logging",
        ),
    ],
)
def test_logins(
    authenticate: Callable[[MysqlServer, Peer, bytes], None], words: str, refused: Refused
) -> None:
    refused(MysqlServer(authenticate=authenticate), words)


def test_a_key_that_is_none(refused: Refused) -> None:
    server = MysqlServer(authenticate=full_authentication)
    refused(server, "what the server sends is not an RSA public key", options="?get-server-public-key=true")


def test_a_pinned_key_is_the_only_one(certificates: Path, refused: Refused) -> None:
    """It is not asked for; and a file that is no RSA key encrypts nothing."""
    server = MysqlServer(authenticate=full_authentication)
    pinned = certificates / "ca.pem"
    refused(server, f"{pinned} is not an RSA public key", options=f"?server-public-key-path={pinned}")
    assert b"\2" not in server.received


def test_a_method_that_begins_with_the_password(tls: ssl.SSLContext, refused: Refused) -> None:
    """With TLS of any kind a client of sha256_password would send it in its first packet."""
    server = MysqlServer(tls, authenticate=switch(b"sha256_password"))
    server.plugin = b"sha256_password"
    refused(server, f"{ITSELF} (sha256_password), over TLS whose certificate is not verified")


@pytest.mark.parametrize("mode", ["PREFERRED", "REQUIRED"])
@pytest.mark.parametrize(
    "authenticate",
    [switch(b"mysql_clear_password", b""), switch(b"dialog", b"\4Password: "), full_authentication],
    ids=["clear", "dialog", "sha2"],
)
def test_tls_that_nobody_verified(
    authenticate: Callable[[MysqlServer, Peer, bytes], None], mode: str, tls: ssl.SSLContext, refused: Refused
) -> None:
    server = MysqlServer(tls, authenticate=authenticate)
    refused(server, "over TLS whose certificate is not verified", options=f"?ssl-mode={mode}")
    assert server.step("tls").is_set()


@pytest.mark.parametrize(
    ("authenticate", "answer"),
    [
        (switch(b"mysql_clear_password", b""), PASSWORD + b"\0"),
        (switch(b"dialog", b"\5Password: "), PASSWORD + b"\0"),
        (full_authentication, PASSWORD + b"\0"),
    ],
    ids=["clear", "dialog", "sha2"],
)
def test_over_verified_tls_the_server_gets_what_it_asks_for(
    authenticate: Callable[[MysqlServer, Peer, bytes], None],
    answer: bytes,
    tls: ssl.SSLContext,
    certificates: Path,
    commands: Commands,
) -> None:
    with MysqlServer(tls, authenticate=authenticate) as server:
        url = server.url(options=f"?ssl-ca={certificates}/ca.pem")
        done = commands.run("binlog", "--json", url, settings={})
    assert (done.code, done.errors) == (0, ""), done
    assert answer in server.received


# -- TLS --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start_tls", "words"),
    [
        (lambda self, peer: peer.raw(b"this is no TLS at all"), "the TLS handshake failed: "),
        (lambda self, peer: self.silent(), "no answer within 1 s while shaking hands for TLS"),
        (
            lambda self, peer: peer.raw(b"\x16\x03\x03\x40\0") or self.drip(peer),
            "no answer within 1 s while shaking",
        ),
    ],
    ids=["garbage", "silence", "dripping"],
)
def test_handshakes(
    start_tls: Callable[[MysqlServer, Peer], None], words: str, tls: ssl.SSLContext, refused: Refused
) -> None:
    refused(MysqlServer(tls, start_tls=start_tls), words)


def test_no_tls_where_it_is_required(refused: Refused) -> None:
    server = MysqlServer()
    refused(server, "the server offers no TLS", options="?ssl-mode=REQUIRED")
    assert not server.received, "nothing but its greeting was read"


def test_a_certificate_of_another_authority(tls: ssl.SSLContext, tmp_path: Path, refused: Refused) -> None:
    write_certificates(tmp_path)
    refused(MysqlServer(tls), "the TLS handshake failed: ", options=f"?ssl-ca={tmp_path}/ca.pem")


def test_bytes_that_are_slipped_in_before_tls(tls: ssl.SSLContext, refused: Refused) -> None:
    """They must not be read as if they had come encrypted."""

    def greet(self: MysqlServer, peer: Peer) -> None:
        data = self.greeting()
        ok = b"\7\0\0\2\0\0\0\2\0\0\0"
        peer.raw(struct.pack("<I", len(data)) + data + ok)

    refused(MysqlServer(tls, greet=greet), "it sends bytes before TLS that belong to no packet")


def test_a_server_that_behaves(tls: ssl.SSLContext, commands: Commands) -> None:
    """So that what the others show is not the tests' own doing."""
    for server in (MysqlServer(), MysqlServer(tls)):
        with server:
            done = commands.run("binlog", "--json", server.url(), settings={})
        assert (done.code, done.errors) == (0, ""), done
        assert done.output.count("\n") > 10
        done.is_well()
        assert server.received[-1] == b"\1", "it says goodbye"
        assert NATIVE in b"".join(server.received)
