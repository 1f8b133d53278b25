"""A schema registry that answers nonsense, too much, too slowly or not at all.

Whatever it does comes out as one line with exit code 5, within a bounded time and memory; what it says of one
schema is told apart from its absence.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from millrace.avro import registry as module
from millrace.avro.registry import (
    IncompatibleSchemaError,
    RegistryError,
    SchemaRefusedError,
    SchemaRegistry,
    UnknownSchemaError,
)
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import RegistrySettings
from tests.shared import run_python

from .web import Answer, Web, dripping, endless, http, web

RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTHLESS = b"HTTP/1.1 200 OK\r\n\r\n"

ASK: dict[str, Callable[[SchemaRegistry], Any]] = {
    "check": lambda registry: registry.check(),
    "register": lambda registry: registry.register("t-value", RECORD),
    "schema": lambda registry: registry.schema(7),
    "subject_schemas": lambda registry: registry.subject_schemas("t-value"),
    "compatibility": lambda registry: registry.compatibility(),
    "mode": lambda registry: registry.mode(),
}


@contextmanager
def met(*answers: Answer, **options: Any) -> Iterator[tuple[Web, SchemaRegistry]]:
    with web(*answers) as server, SchemaRegistry(RegistrySettings(url=server.url), **options) as registry:
        yield server, registry


def refused(ask: str, *answers: Answer, **settings: Any) -> RegistryError:
    with web(*answers) as server:
        url = RegistrySettings(url=server.url, **settings)
        with SchemaRegistry(url, retry_s=0) as registry, pytest.raises(RegistryError) as caught:
            ASK[ask](registry)
    assert caught.value.exit_code is ExitCode.REGISTRY
    message = caught.value.message
    assert server.url in message
    assert len(message) < 1000
    assert message.isprintable()
    return caught.value


def nested(depth: int) -> Any:
    schema: Any = "long"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


NONSENSE = [
    b"",
    b"null",
    b"[",
    b"<html><body>welcome</body></html>",
    b"\xff\xfe\x00",
    b'"text"',
    b"7",
    b"[" * 100_000,
    b'{"id": ' + b"9" * 10_000 + b"}",
]


@pytest.mark.parametrize("ask", sorted(ASK.keys() - {"check"}))
@pytest.mark.parametrize("body", NONSENSE, ids=lambda body: body[:8].decode("latin-1") or "empty")
def test_an_answer_that_is_none(ask: str, body: bytes) -> None:
    assert "is not a schema registry" in refused(ask, http(200, body)).message


@pytest.mark.parametrize(
    "answer",
    [{}, {"id": None}, {"id": -5}, {"id": 2**31}, {"id": "7"}, {"id": 7.0}, {"id": True}, {"id": [7]}, [7]],
    ids=json.dumps,
)
def test_no_id(answer: Any) -> None:
    assert "is not a schema registry" in refused("register", http(200, answer)).message


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        ("compatibility", {}),
        ("compatibility", {"compatibilityLevel": 5}),
        ("mode", {"mode": None}),
        ("schema", {}),
        ("schema", {"schema": None}),
        ("schema", {"schema": RECORD}),
        ("subject_schemas", {"versions": [1]}),
        ("subject_schemas", ["one"]),
        ("subject_schemas", [True]),
        ("subject_schemas", [-1]),
    ],
    ids=json.dumps,
)
def test_an_answer_to_something_else(ask: str, answer: Any) -> None:
    assert "is not a schema registry" in refused(ask, http(200, answer)).message


def recursive(kind: str) -> Any:
    """Read by such a schema, two bytes take one more level of C's stack each."""
    inner: Any = ["null", "R"] if kind == "union" else "R"
    if kind == "array":
        inner = {"type": "array", "items": "R"}
    return {"type": "record", "name": "R", "fields": [{"name": "r", "type": inner}]}


def laughs() -> Any:
    """2^40 empty records out of no byte."""
    schema: Any = {"type": "record", "name": "R0", "fields": []}
    for level in range(1, 41):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{level - 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (recursive("itself"), "contains itself"),
        (recursive("union"), "contains itself"),
        (recursive("array"), "contains itself"),
        (nested(200), "deeper than"),
        ({"type": "array", "items": "null"}, "no byte"),
        ({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, "no byte"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "no byte"),
        (laughs(), "no byte"),
        ({"type": "fixed", "name": "F", "size": -1}, "is not an Avro schema"),
        ({"type": "fixed", "name": "F", "size": "many"}, "is not an Avro schema"),
        ({"type": "no such type"}, "is not an Avro schema"),
        ({"type": {"type": "record"}}, "is not an Avro schema"),
        ("no such name", "is not an Avro schema"),
        (None, "is not an Avro schema"),
        (5, "is not an Avro schema"),
        ([[]], "is not an Avro schema"),
        ([], "is not an Avro schema"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": []}]}, "is not an Avro schema"),
    ],
    ids=lambda part: part if isinstance(part, str) else json.dumps(part)[:40],
)
def test_a_schema_that_must_not_be_read_by(schema: Any, words: str) -> None:
    message = refused("schema", http(200, {"schema": json.dumps(schema)})).message
    assert "schema 7" in message
    assert words in message


def test_a_schema_that_is_no_json() -> None:
    assert "schema 7" in refused("schema", http(200, {"schema": "<xml>"})).message
    assert "schema 7" in refused("schema", http(200, {"schema": "[" * 100_000})).message


def test_schemas_that_are_ours_are_read() -> None:
    """As deep and as wide as a table of 4096 columns, and types that are named twice."""
    columns = [{"name": f"c{number}", "type": ["null", "long"]} for number in range(4096)]
    row = {"type": "record", "name": "Row", "fields": columns}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Row"]}]
    envelope = {"type": "record", "name": "Envelope", "fields": fields}
    with met(http(200, {"schema": json.dumps(envelope)})) as (_, registry):
        assert registry.schema(7) == envelope


@pytest.mark.parametrize("ask", sorted(ASK.keys() - {"check"}))
@pytest.mark.parametrize(
    "answer",
    [
        endless(LENGTHLESS, b"[" + b" " * 65535),
        endless(CHUNKED, b"ffff\r\n" + b"7" * 65535 + b"\r\n"),
        http(200, b'["' + b"x" * (8 << 20) + b'"]'),
    ],
    ids=["endless", "endless chunks", "long"],
)
def test_a_body_that_does_not_end(ask: str, answer: Answer) -> None:
    assert "more than 4 MiB" in refused(ask, answer).message


def test_only_the_beginning_of_the_list_of_subjects_is_read() -> None:
    with met(endless(LENGTHLESS, b'["a",' * 10_000)) as (_, registry):
        registry.check()


@pytest.mark.parametrize(
    "answer",
    [
        dripping(LENGTHLESS + b"[", b" "),
        dripping(CHUNKED, b"1\r\n \r\n"),
        dripping(b"HTTP/1.1 200 OK\r\n", b"X-A: 1\r\n"),
        dripping(b"HTTP/1.1 200 O", b"K"),
        dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        lambda connection: connection.recv(1),
    ],
    ids=["body", "chunks", "headers", "status", "continues", "silence"],
)
def test_an_answer_that_drips(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REQUEST_TIMEOUT_S", 0.4)
    assert "does not answer" in refused("register", answer).message


@pytest.mark.parametrize(
    "answer",
    [
        endless(b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"b" * 1000 + b"\r\n"),
        endless(b"HTTP/1.1 200 ", b"O" * 65536),
        endless(b"", b"\x00" * 65536),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x4a\x00\x00\x00\x0a8.0.15\x00",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[",
        CHUNKED + b"zz\r\n",
        http(200, b"[]", "Content-Encoding: gzip"),
    ],
    ids=["headers", "status", "zeros", "ssh", "mysql", "nothing", "cut", "chunk", "gzip"],
)
def test_what_is_no_http(answer: Answer) -> None:
    message = refused("register", answer).message
    assert "does not answer" in message or "is not a schema registry" in message


def test_credentials_go_nowhere_else() -> None:
    with web(http(200, [])) as elsewhere:
        for status in (301, 302, 303, 307, 308):
            error = refused(
                "check",
                http(status, b"", f"Location: {elsewhere.url}/subjects"),
                username="u",
                password=SecretStr("hidden"),
            )
            assert f"HTTP {status}" in error.message
            assert "MILLRACE_REGISTRY_URL" in error.message
            assert "hidden" not in error.message
    assert elsewhere.requests == []


def test_what_it_says_is_cut_and_printable() -> None:
    said = "\x1b[31mno\r\nerror: everything is lost\x07" + "x" * 100_000
    refused("register", http(422, {"error_code": 42201, "message": said}))
    refused("check", http(500, {"error_code": 50001, "message": said}))
    refused("compatibility", http(418, said))
    refused("mode", http(200, said.encode()))
    with (
        web(http(200, {"mode": said})) as server,
        SchemaRegistry(RegistrySettings(url=server.url)) as registry,
    ):
        assert registry.mode().isprintable()
        assert len(registry.mode()) < 1000


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (409, {"error_code": 409, "message": "incompatible"}),
        (422, {"error_code": 42201, "message": "Invalid schema"}),
        (400, {"error_code": 400, "message": "duplicate field"}),
        (413, b"<html>too large</html>"),
    ],
)
def test_a_refused_schema_is_one_tables_trouble(status: int, body: object) -> None:
    error = refused("register", http(status, body))
    assert isinstance(error, SchemaRefusedError)
    assert isinstance(error, IncompatibleSchemaError) == (status == 409)
    assert "t-value" in error.message


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"<html>The plain HTTP request was sent to HTTPS port</html>"),
        (422, b""),
        (409, b"<html>"),
        (422, {"error_code": 42205, "message": "Subject is in read-only mode"}),
        (401, {"error_code": 40101, "message": "no"}),
        (403, {"error_code": 40301, "message": "no"}),
        (404, b"<html>"),
        (405, b""),
        (429, {"error_code": 42901, "message": "slow down"}),
        (500, {"error_code": 50001, "message": "disk full"}),
        (502, b"<html>"),
        (503, b""),
        (504, b""),
    ],
)
def test_a_registry_that_is_not_there_is_everybodys(status: int, body: object) -> None:
    assert not isinstance(refused("register", http(status, body)), SchemaRefusedError)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            401,
            {"error_code": 40101, "message": "no"},
            "refuses us (HTTP 401): set MILLRACE_REGISTRY_USERNAME",
        ),
        (403, b"", "refuses us"),
        (404, b"<html>", "there is no schema registry at"),
        (200, b"<html>", "is not a schema registry"),
        (500, {"error_code": 500, "message": "on fire"}, "on fire"),
    ],
)
def test_what_is_said_at_the_start(status: int, body: object, words: str) -> None:
    message = refused("check", http(status, body), username="u", password=SecretStr("hidden")).message
    assert words in message
    assert "hidden" not in message


def test_a_schema_that_we_could_not_read_back_is_not_sent() -> None:
    fields = [{"name": f"c{number:050}", "type": "long"} for number in range(60_000)]
    with met(http(200, {"id": 1})) as (server, registry), pytest.raises(SchemaRefusedError):
        registry.register("t-value", {"type": "record", "name": "R", "fields": fields})
    assert server.requests == []


def test_an_id_that_nobody_knows() -> None:
    error = refused("schema", http(404, {"error_code": 40403, "message": "Schema not found"}))
    assert isinstance(error, UnknownSchemaError)


def test_more_versions_than_can_be_asked_for() -> None:
    assert "versions" in refused("subject_schemas", http(200, list(range(1, 20_000)))).message


def test_one_that_is_slow_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REQUEST_TIMEOUT_S", 0.4)
    with met(lambda connection: connection.recv(1), http(200, []), retry_s=20) as (_, registry):
        registry.check()


def test_one_that_has_said_what_it_lacks_has_answered() -> None:
    """It is asked again later, as one that has given a schema."""
    unknown = http(404, {"error_code": 40403, "message": "Schema not found"})
    with met(unknown, http(503, b""), http(200, []), retry_s=20) as (_, registry):
        with pytest.raises(UnknownSchemaError):
            registry.schema(7)
        registry.check()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_storm_ends(status: int) -> None:
    """Asked again for a bounded time, with pauses that grow."""
    storm = http(status, {"error_code": status, "message": "no"})
    with met(http(200, []), storm, retry_s=1) as (server, registry):
        registry.check()
        with pytest.raises(RegistryError, match="no") as caught:
            registry.schema(7)
    assert caught.value.exit_code is ExitCode.REGISTRY
    assert 2 <= len(server.requests) <= 12


def test_a_retry_ends_when_the_service_is_to_stop() -> None:
    stop = threading.Event()
    with met(http(200, []), http(503, b""), retry_s=3600, stop=stop) as (_, registry):
        registry.check()
        threading.Timer(0.3, stop.set).start()
        with pytest.raises(RegistryError):
            registry.schema(7)


def test_no_tls_where_tls_is_asked_for() -> None:
    with web(http(200, [])) as server:
        url = server.url.replace("http:", "https:")
        with SchemaRegistry(RegistrySettings(url=url)) as registry, pytest.raises(RegistryError) as caught:
            registry.check()
    assert "MILLRACE_REGISTRY_URL" in caught.value.message


MEASURE = r"""
import json, re, sys
from millrace.avro.registry import RegistryError, SchemaRegistry
from millrace.runtime.settings import RegistrySettings
with SchemaRegistry(RegistrySettings(url=sys.argv[1]), retry_s=0) as registry:
    for ask in (lambda: registry.register("t", "long"), lambda: registry.schema(7), registry.mode):
        try:
            ask()
        except RegistryError as error:
            assert error.exit_code == 5
        else:
            raise AssertionError
print(int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]) // 1024)
"""


@pytest.mark.parametrize(
    "answer",
    [
        endless(LENGTHLESS, b"[" * 65536),
        http(200, b"[" + b"{}," * (1 << 20) + b"{}]"),
        http(200, b"[" + b'{"":0},' * (590_000) + b"{}]"),
        http(200, {"schema": "[" + '{"":0},' * 500_000 + "{}]"}),
        http(200, {"schema": json.dumps(laughs())}),
        http(200, b"[]" * 100, "Content-Encoding: deflate"),
    ],
    ids=["endless", "objects", "maps", "objects in a schema", "laughs", "encoded"],
)
def test_memory(answer: Answer) -> None:
    with web(answer) as server:
        done = run_python("-c", MEASURE, server.url, settings={})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300


def test_a_kept_connection_that_the_registry_has_closed() -> None:
    """Without mention of the failure: it is made again."""
    kept = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
    with met(kept, kept) as (server, registry):
        registry.check()
        registry.check()
    assert len(server.requests) == 2


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with web(http(200, [])) as proxy:
        address = proxy.url.removeprefix("http://")
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://someone:known@{address}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with SchemaRegistry(RegistrySettings(url="http://registry.example:8081/api")) as registry:
            registry.check()
        (plain,) = proxy.requests
        assert plain.startswith("GET http://registry.example:8081/api/subjects HTTP/1.1\r\n")
        assert "Proxy-Authorization: Basic c29tZW9uZTprbm93bg==\r\n" in plain
        secure = RegistrySettings(url="https://registry.example")
        with SchemaRegistry(secure) as registry, pytest.raises(RegistryError):
            registry.check()
        assert proxy.lines()[1].startswith("CONNECT registry.example:443 HTTP/1.")
        with web(http(200, [])) as server, SchemaRegistry(RegistrySettings(url=server.url)) as registry:
            registry.check()
        assert server.lines() == ["GET /subjects HTTP/1.1"]
        assert len(proxy.requests) == 2


def test_threads_share_a_registry() -> None:
    """Each gets the answer to its own request: here the id is the number of fields in the schema."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            posted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(0.01)
            schema_id = len(json.loads(posted["schema"])["fields"])
            schemas[schema_id] = posted["schema"]
            self._answer({"id": schema_id})

        def do_GET(self) -> None:
            self._answer({"schema": schemas[int(self.path.rpartition("/")[2])]})

        def _answer(self, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    schemas: dict[int, str] = {}

    def register(count: int) -> int:
        fields = [{"name": f"f{number}", "type": "int"} for number in range(count)]
        return registry.register("t", {"type": "record", "name": "t", "fields": fields})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with SchemaRegistry(RegistrySettings(url=url)) as registry, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(register, range(1, 81))) == list(range(1, 81))
    server.shutdown()
    server.server_close()
