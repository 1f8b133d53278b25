"""The schema registry's client against a real registry, and against what is none."""

import ssl
import threading
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives import serialization

from millrace.avro import registry as module
from millrace.avro.records import RecordSerializer, deserialize
from millrace.avro.registry import (
    IncompatibleSchemaError,
    RegistryError,
    SchemaRefusedError,
    SchemaRegistry,
    UnknownSchemaError,
    value_subject,
)
from millrace.local.certificates import write_certificates
from millrace.local.processes import release_port, reserve_port
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import RegistrySettings


def record(*fields):
    return {"type": "record", "name": "R", "namespace": "n", "fields": list(fields)}


A = {"name": "a", "type": "long"}
B = {"name": "b", "type": "string"}


@pytest.fixture
def client(registry):
    with SchemaRegistry(RegistrySettings(url=registry.url)) as made:
        yield made


def test_register_and_read_back(client, source_name):
    subject = value_subject(source_name)
    first = client.register(subject, record(A))
    assert client.register(subject, record(A)) == first
    assert client.schema(first) == record(A)
    nullable = {**B, "type": ["null", "string"], "default": None}
    assert client.register(subject, record(A, nullable)) != first


def test_same_schema_by_another_process_has_the_same_id(client, registry, source_name):
    first = client.register(value_subject(source_name), record(A))
    with SchemaRegistry(RegistrySettings(url=registry.url)) as other:
        assert other.register(value_subject(source_name), record(A)) == first


def test_incompatible_schema_is_refused(client, source_name):
    subject = value_subject(source_name)
    client.register(subject, record(A))
    incompatible = record({"name": "a", "type": "string"}, B)
    with pytest.raises(RegistryError, match=f"refuses the schema of {subject}") as refused:
        client.register(subject, incompatible)
    assert refused.value.exit_code is ExitCode.REGISTRY
    assert isinstance(refused.value, IncompatibleSchemaError)


def test_records_of_checked_in_schemas(client, source_name):
    serialize = RecordSerializer(client, source_name, "Transaction")
    values = {
        "status": "END",
        "id": "0-1-7",
        "event_count": 2,
        "data_collections": [{"data_collection": "a.b", "event_count": 2}],
        "ts_ms": 5,
        "server_id": 1,
        "epoch": 0,
        "file": "bin.000001",
        "pos": 4,
        "non_row_changes": None,
    }
    assert deserialize(client, serialize(values)) == values


def test_what_goes_down_later_is_asked_again(client, source_name, monkeypatch):
    """A registry that has answered once may be away for a moment."""
    client.check()
    asked = []
    request = module.BoundedHttp.request

    def flaky(self, method, path, content=None):
        asked.append(path)
        if len(asked) < 3:
            raise ConnectionRefusedError("connection refused")
        return request(self, method, path, content)

    monkeypatch.setattr(module.BoundedHttp, "request", flaky)
    assert client.schema(client.register(value_subject(source_name), record(A))) == record(A)
    assert len(asked) == 5  # two failures, the registration, and its schema by its id twice


def test_what_stays_down_is_an_error_in_words(registry, source_name, monkeypatch):
    def down(self, method, path, content=None):
        raise ConnectionRefusedError("connection refused")

    with SchemaRegistry(RegistrySettings(url=registry.url), retry_s=0.5) as client:
        client.check()
        monkeypatch.setattr(module.BoundedHttp, "request", down)
        with pytest.raises(RegistryError, match="does not answer"):
            client.register(value_subject(source_name), record(A))


def test_subjects_as_they_are(client, source_name):
    assert client.subject_schemas(value_subject(source_name)) == {}
    first = client.register(value_subject(source_name), record(A))
    assert client.subject_schemas(value_subject(source_name)) == {first: record(A)}
    assert client.compatibility() == "BACKWARD"
    assert client.mode() == "READWRITE"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "R", "fields": [A, A]},
        {"type": "record", "name": "R", "fields": [{"name": "", "type": "long"}]},
        {"type": "record", "name": "1", "fields": []},
    ],
)
def test_a_schema_that_is_none_is_refused_as_one(client, source_name, schema):
    with pytest.raises(SchemaRefusedError, match=f"refuses the schema of {source_name}-value .HTTP 422.: "):
        client.register(value_subject(source_name), schema)
    client.check()


def test_an_id_that_nobody_has(client):
    with pytest.raises(UnknownSchemaError, match=r"refuses the schema 2147483647 .HTTP 404.: "):
        client.schema(2**31 - 1)


def test_nobody_there():
    port = reserve_port()
    try:
        with (
            SchemaRegistry(RegistrySettings(url=f"http://user:hidden@127.0.0.1:{port}")) as client,
            pytest.raises(RegistryError, match=f"at http://127.0.0.1:{port} does not answer"),
        ):
            client.check()
    finally:
        release_port(port)


@pytest.fixture
def secured(registry, tmp_path):
    """A TLS endpoint before the registry, which asks for a certificate, and the settings to reach it."""
    write_certificates(tmp_path)
    ca, certificate, key = (tmp_path / f"{name}.pem" for name in ("ca", "server-cert", "server-key"))
    at = urlsplit(registry.url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self):
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            behind = HTTPConnection(at.netloc)
            with closing(behind):
                behind.request(self.command, self.path, content, dict(self.headers))
                answer = behind.getresponse()
                body = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = forward  # noqa: N815 - as http.server calls them

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    tls.load_cert_chain(certificate, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.maximum_version = ssl.TLSVersion.TLSv1_2  # its handshake fails; that of 1.3 succeeds for the client
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        url = f"https://127.0.0.1:{server.server_port}{at.path}"
        yield {"url": url, "ssl_ca_location": ca}, certificate, key
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("password", [None, "hidden"])
def test_a_registry_that_asks_for_a_certificate(secured, source_name, password, tmp_path):
    settings, certificate, key = secured
    if password is not None:
        known = serialization.load_pem_private_key(key.read_bytes(), None)
        encrypted = serialization.BestAvailableEncryption(password.encode())
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted
        key = tmp_path / "encrypted.pem"
        key.write_bytes(known.private_bytes(*form))
    ours = {"ssl_certificate_location": certificate, "ssl_key_location": key, "ssl_key_password": password}
    with SchemaRegistry(RegistrySettings(**settings, **ours)) as client:
        assert client.schema(client.register(value_subject(source_name), record(A))) == record(A)
    with SchemaRegistry(RegistrySettings(**settings)) as client, pytest.raises(RegistryError) as refused:
        client.check()
    assert "take the one in MILLRACE_REGISTRY_SSL_CERTIFICATE_LOCATION?" in refused.value.message
    if password is not None:
        for wrong in (None, "other"):
            with pytest.raises(RegistryError, match="_KEY_PASSWORD cannot be used: "):
                SchemaRegistry(RegistrySettings(**settings, **ours | {"ssl_key_password": wrong}))
