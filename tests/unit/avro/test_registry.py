"""What is said where no schema registry answers, or something else does."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from millrace.avro.registry import RegistryError, SchemaRegistry
from millrace.local.processes import release_port, reserve_port
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import RegistrySettings

HINT = (
    "MILLRACE_REGISTRY_URL must be the root of Confluent's API, such as http://host:8081 or "
    "http://host:port/apis/ccompat/v7"
)


@contextmanager
def web_server(status: int, text: str) -> Iterator[str]:
    """A server that gives the same answer to whatever it is asked."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def said(settings: RegistrySettings) -> str:
    with pytest.raises(RegistryError) as caught, SchemaRegistry(settings) as registry:
        registry.check()
    assert caught.value.exit_code is ExitCode.REGISTRY
    return caught.value.message


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (200, "<p>welcome</p>", "what answers at {} is not a schema registry ("),
        (404, "nothing here", "there is no schema registry at {} (HTTP 404): "),
        (
            409,
            '{"error_code": 409, "message": "reader has no field a"}',
            "the schema registry at {} refuses the list of subjects (HTTP 409): reader has no field a",
        ),
        (
            500,
            '{"error_code": 50001, "message": "its disk is full"}',
            "the schema registry at {} refuses the list of subjects (HTTP 500): its disk is full",
        ),
        (401, "{}", "the schema registry at {} refuses us (HTTP 401): set MILLRACE_REGISTRY_USERNAME and "),
    ],
)
def test_what_answers_is_no_registry_or_refuses(status: int, text: str, words: str) -> None:
    with web_server(status, text) as url:
        message = said(RegistrySettings(url=url))
    assert message.startswith(words.replace("{}", url))
    ends = {401: "to a user who may read and register schemas", 409: "no field a", 500: "its disk is full"}
    assert message.endswith(ends.get(status, HINT))


def test_nothing_answers() -> None:
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    message = said(RegistrySettings(url=url))
    release_port(port)
    assert message.startswith(f"the schema registry at {url} does not answer (")
    assert message.endswith("): is it running, and is MILLRACE_REGISTRY_URL right?")


@pytest.mark.parametrize("names", [("ca",), ("certificate", "key")])
def test_certificates_that_are_not_there(names: tuple[str, ...], tmp_path: Path) -> None:
    files = {f"ssl_{name}_location": tmp_path / "nothing.pem" for name in names}
    message = said(RegistrySettings(url="https://localhost:1", **files))
    assert message.startswith(f"MILLRACE_REGISTRY_SSL_{names[0].upper()}_LOCATION")
    assert " cannot be used: [Errno 2] No such file or directory" in message


def test_a_registry_that_answers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = [0.0]
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("millrace.avro.registry.time", clock)
    with ExitStack() as server:
        url = server.enter_context(web_server(200, "[]"))
        with SchemaRegistry(RegistrySettings(url=url), retry_s=0.3) as registry:
            registry.check()
            server.close()
            with capture_logs() as logged, pytest.raises(RegistryError) as caught:
                registry.check()
    assert caught.value.message.startswith(f"the schema registry at {url} does not answer (")
    assert {entry["event"] for entry in logged} == {"registry does not answer, trying again"}
