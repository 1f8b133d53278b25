"""The schema registry, over Confluent's API: schemas in, ids out, each asked for once.

Records of ``{source}.events``, ``.transactions``, ``.ddl``, ``.deadletter`` and of the tables are in
Confluent's wire format: a zero byte, the id of the writer's schema (uint32, big-endian), the record in Avro's
binary form. The subject of a topic's keys is ``{topic}-key``, that of its values ``{topic}-value``.

Besides :mod:`millrace.kafka` only this module imports ``confluent_kafka``, for its registry client.
"""

import json
import random
import struct
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import SchemaRegistryError

from millrace.avro.schemas import Schema
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import RegistrySettings

__all__ = [
    "RegistryError",
    "SchemaRefusedError",
    "SchemaRegistry",
    "UnknownSchemaError",
    "key_subject",
    "split_wire_format",
    "value_subject",
    "wire_prefix",
]

_log = get_logger(__name__)
_PREFIX = struct.Struct(">BI")
_REQUEST_TIMEOUT_S: Final = 10
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 2.0
_MAY_PASS: Final = {408, 429, 500, 502, 503, 504}
_INCOMPATIBLE: Final = 409
_INVALID: Final = 422
_URL_HINT: Final = (
    "MILLRACE_REGISTRY_URL must be the root of Confluent's API, such as http://host:8081 or "
    "http://host:port/apis/ccompat/v7"
)

T = TypeVar("T")


class RegistryError(UserError):
    """The registry cannot be reached, or refuses."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.REGISTRY)


class UnknownSchemaError(RegistryError):
    """The registry answers, and has no schema of that id or subject."""


class SchemaRefusedError(RegistryError):
    """The registry answers, and refuses one schema: it is not valid, or not compatible."""


def key_subject(topic: str) -> str:
    """Name the subject of a topic's keys."""
    return f"{topic}-key"


def value_subject(topic: str) -> str:
    """Name the subject of a topic's values."""
    return f"{topic}-value"


def wire_prefix(schema_id: int) -> bytes:
    """Return the 5 bytes in front of a record written with the schema ``schema_id``."""
    return _PREFIX.pack(0, schema_id)


def split_wire_format(data: bytes) -> tuple[int, bytes]:
    """Return schema id and Avro bytes of a record; raises ValueError where there is no such prefix."""
    if len(data) < _PREFIX.size or data[0] != 0:
        raise ValueError(f"{data[:5].hex() or 'nothing'} is not 00 and a schema id, Confluent's wire format")
    schema_id: int = _PREFIX.unpack_from(data)[1]
    return schema_id, data[_PREFIX.size :]


class SchemaRegistry:
    """A schema registry, and what it is known to hold.

    The first request is made once: a registry that does not answer at the start is a mistake to be told at
    once. Later, requests that fail for a reason which may pass are repeated for up to ``retry_s`` seconds,
    which must stay below the timeout of a Kafka transaction. Methods raise :class:`RegistryError`.
    """

    def __init__(self, settings: RegistrySettings, *, retry_s: float = 20.0) -> None:
        self._place = _without_credentials(settings.url)
        conf: dict[str, Any] = {"url": settings.url, "timeout": _REQUEST_TIMEOUT_S, "max.retries": 0}
        if settings.username is not None and settings.password is not None:
            conf["basic.auth.user.info"] = f"{settings.username}:{settings.password.get_secret_value()}"
        if settings.ssl_ca_location is not None:
            conf["ssl.ca.location"] = str(settings.ssl_ca_location)
        try:
            self._client = SchemaRegistryClient(conf)
        except (OSError, ValueError) as error:
            raise RegistryError(f"the schema registry's settings cannot be used: {error}") from None
        self._retry_s = retry_s
        self._met = False
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, dict[str, Any]] = {}

    def check(self) -> None:
        """Make sure that the registry answers and lets us in."""
        self._ask("list of subjects", self._client.get_subjects)

    def register(self, subject: str, schema: Schema, *, always: bool = False) -> int:
        """Return the id of ``schema``, registering it under ``subject`` if it is not there yet.

        A registry refuses a schema that is not compatible with the subject's last one. With ``always`` the
        subject's compatibility is then set to NONE and the schema registered after all: rows that have
        changed in the database must reach their topic in whatever form.
        """
        text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
        known = self._ids.get((subject, text))
        if known is not None:
            return known
        avro = RegistrySchema(text, "AVRO")
        try:
            schema_id = self._ask(f"schema of {subject}", lambda: self._client.register_schema(subject, avro))
        except _IncompatibleError as error:
            if not always:
                raise
            _log.warning("incompatible schema", subject=subject, compatibility="NONE", reason=error.message)
            self._ask(f"level of {subject}", lambda: self._client.set_compatibility(subject, "NONE"))
            schema_id = self._ask(f"schema of {subject}", lambda: self._client.register_schema(subject, avro))
        self._ids[subject, text] = schema_id
        return schema_id

    def schema(self, schema_id: int) -> dict[str, Any]:
        """Return the schema with the id ``schema_id``, as JSON gives it."""
        known = self._schemas.get(schema_id)
        if known is None:
            answer = self._ask(f"schema {schema_id}", lambda: self._client.get_schema(schema_id))
            known = self._schemas[schema_id] = json.loads(answer.schema_str or "null")
        return known

    def subject_schemas(self, subject: str) -> dict[int, dict[str, Any]]:
        """Return every schema that is registered under ``subject``, by its id; empty where there is none."""
        if subject not in self._ask("list of subjects", self._client.get_subjects):
            return {}
        found: dict[int, dict[str, Any]] = {}
        for version in self._ask(f"versions of {subject}", partial(self._client.get_versions, subject)):
            request = partial(self._client.get_version, subject, version)
            answer = self._ask(f"version {version} of {subject}", request)
            if answer.schema_id is not None:
                found[answer.schema_id] = json.loads(answer.schema.schema_str or "null")
        return found

    def compatibility(self) -> str:
        """Return the level that holds for subjects without one of their own: BACKWARD, NONE, …."""
        return str(self._ask("compatibility level", self._client.get_compatibility))

    def mode(self) -> str:
        """Return whether schemas may be registered: READWRITE, READONLY, …."""
        return str(self._ask("mode", self._client.get_global_mode))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, what: str, request: Callable[[], T]) -> T:
        """Make a request, again and again where its failure may pass and the registry has answered before."""
        deadline = time.monotonic() + (self._retry_s if self._met else 0.0)
        wait = _FIRST_WAIT_S
        while True:
            try:
                answer = request()
            except SchemaRegistryError as error:
                failure = self._refusal(what, error)
                may_pass = error.http_status_code in _MAY_PASS
            except httpx.InvalidURL as error:
                raise RegistryError(
                    f"there can be no schema registry at {self._place} ({error}): check MILLRACE_REGISTRY_URL"
                ) from None
            except (httpx.HTTPError, ValueError) as error:
                failure = self._silence(error)
                may_pass = isinstance(error, httpx.TransportError)
            else:
                self._met = True
                return answer
            if not may_pass or time.monotonic() + wait > deadline:
                raise failure
            _log.warning("registry does not answer, trying again", wait_s=wait, reason=failure.message)
            time.sleep(wait * (0.5 + random.random() / 2))  # noqa: S311 - spreads the load, hides nothing
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _refusal(self, what: str, error: SchemaRegistryError) -> RegistryError:
        status, reason = error.http_status_code, error.error_message
        if status in {401, 403}:
            return RegistryError(
                f"the schema registry at {self._place} refuses us (HTTP {status}): set "
                "MILLRACE_REGISTRY_USERNAME and _PASSWORD to a user who may read and register schemas"
            )
        if status == _INCOMPATIBLE:
            return _IncompatibleError(f"the schema registry at {self._place} refuses the {what}: {reason}")
        if status == 404 and not str(error.error_code).startswith("404"):
            return RegistryError(f"there is no schema registry at {self._place} (HTTP 404): {_URL_HINT}")
        kind = {404: UnknownSchemaError, _INVALID: SchemaRefusedError}.get(status, RegistryError)
        return kind(f"the schema registry at {self._place} refuses the {what} (HTTP {status}): {reason}")

    def _silence(self, error: Exception) -> RegistryError:
        if isinstance(error, httpx.TransportError):
            return RegistryError(
                f"the schema registry at {self._place} does not answer ({error or type(error).__name__}): "
                "is it running, and is MILLRACE_REGISTRY_URL right?"
            )
        return RegistryError(f"what answers at {self._place} is no schema registry ({error}): {_URL_HINT}")


class _IncompatibleError(SchemaRefusedError):
    """The subject's compatibility level rules the schema out."""


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
