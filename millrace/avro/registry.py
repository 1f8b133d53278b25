"""Where schemas are kept: schemas in, ids out. Here over the API of Confluent's schema registry.

Records of ``{source}.events``, ``.transactions``, ``.ddl``, ``.deadletter`` and tables name their schema
in front of their Avro. With a registry that is Confluent's wire format: a zero byte and the registry's id of
the schema (uint32, big-endian). The subject of a topic's keys is ``{topic}-key``, that of its values
``{topic}-value``. Without one schemas are in a topic (:mod:`millrace.kafka.schema_topic`), their ids negative
(int64), and records begin as Avro's single objects do: ``c3 01``, then the id, little-endian.

A registry is not trusted. A request as a whole has a time limit, an answer a size, redirects are not
followed, and nothing of an answer is used before it is known to be what was asked for. Errors::

    RegistryError               it cannot be reached, or answers nonsense: the service ends with code 5
    ├── UnknownSchemaError      it has no schema of that id
    └── SchemaRefusedError      it will not have this schema: the trouble of one table
    SchemaLostError             it has lost a schema by which records were written: code 7

What it has given an id may be lost: it is emptied, restored from an older copy, exchanged. Then others are
given the same ids, and consumers read by them what ours wrote. So a schema is asked for under its id before
records are written by it, and once a minute while they are.
"""

import hashlib
import json
import random
import ssl
import struct
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from http.client import InvalidURL
from threading import Event
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, unquote, urlsplit

from millrace.avro.bounded_http import Answer, BoundedHttp, HTTPException, basic_authorization
from millrace.avro.foreign import check_schema
from millrace.avro.schemas import Schema
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import RegistrySettings
from millrace.text import printable

_log = get_logger(__name__)
_PREFIX = struct.Struct(">BI")
WIRE_PREFIX_SIZE: Final = _PREFIX.size
"""Bytes in front of a record in Confluent's wire format: they hold the id of its schema."""

_SINGLE: Final = b"\xc3\x01"
_SINGLE_PREFIX: Final = struct.Struct("<2sq")

_REQUEST_TIMEOUT_S: Final = 10.0
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 2.0
_MAY_PASS: Final = {408, 429, 500, 502, 503, 504}
_TOO_LARGE: Final = 413
_OF_THE_SCHEMA: Final = frozenset({400, 409, _TOO_LARGE, 422})
_INCOMPATIBLE: Final = 409
_NOT_PERMITTED: Final = 42205
"""The error code, with status 422, of a registry in which nothing may be registered."""
_LONGEST_ANSWER: Final = 4 << 20
_LONGEST_SCHEMA: Final = _LONGEST_ANSWER // 2
"""Of ours, in UTF-8: an answer holds it with its quotation marks escaped."""
_MOST_VERSIONS: Final = 10_000
_LOOK_EVERY_S: Final = 60.0
_MOST_LOOKED_AT: Final = 500
"""Schemas that are asked for once a minute: the one with the highest id, and others in turn."""
_HEADERS: Final = {
    "Accept": "application/vnd.schemaregistry.v1+json, application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/vnd.schemaregistry.v1+json",
}
_URL_HINT: Final = (
    "MILLRACE_REGISTRY_URL must be the root of Confluent's API, such as http://host:8081 or "
    "http://host:port/apis/ccompat/v7"
)

T = TypeVar("T")


class RegistryError(UserError):
    """The registry cannot be reached, refuses us, or answers what no registry does: exit code 5.

    It concerns everything that needs the registry, not one schema.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.REGISTRY)


class UnknownSchemaError(RegistryError):
    """The registry answers, and has no schema of that id or subject."""


class SchemaRefusedError(RegistryError):
    """The registry works and refuses this one schema: invalid, incompatible, or too large.

    What a table is named and made of can lead to it (two columns whose names differ in case alone, 4096
    columns of ENUM), so who registers the schemas of tables catches it and quarantines that table. Of one of
    our own schemas it is a :class:`RegistryError` like others.
    """


class IncompatibleSchemaError(SchemaRefusedError):
    """The subject's compatibility level rules the schema out."""


class SchemaLostError(UserError):
    """A schema by which records were written is not kept under its id, and cannot be again: exit code 7."""

    def __init__(self, where: str, subject: str, schema_id: int, found: str) -> None:
        super().__init__(
            f"{where} has {found} under the id {schema_id}, by which records of {subject} were written. "
            "Was it emptied, restored from an older copy, or exchanged? Either restore it with all of its "
            "schemas and start again, or stop decoder and row mapper: 'millrace reprocess' writes events "
            "and rows again with the ids that it gives now",
            ExitCode.DATA,
        )


def key_subject(topic: str) -> str:
    """Name the subject of a topic's keys."""
    return f"{topic}-key"


def value_subject(topic: str) -> str:
    """Name the subject of a topic's values."""
    return f"{topic}-value"


def wire_prefix(schema_id: int) -> bytes:
    """Return the bytes in front of a record written with the schema ``schema_id``."""
    return _PREFIX.pack(0, schema_id) if schema_id >= 0 else _SINGLE_PREFIX.pack(_SINGLE, schema_id)


def prefix_size(data: bytes) -> int:
    """Return the number of bytes in front of a record's Avro: 5 with a registry, 10 without."""
    return _SINGLE_PREFIX.size if data[:2] == _SINGLE else _PREFIX.size


def without_prefix(data: bytes) -> bytes:
    """Return the Avro of a record."""
    return data[prefix_size(data) :]


def split_wire_format(data: bytes) -> tuple[int, bytes]:
    """Return schema id and Avro bytes of a record; raises ValueError where there is no such prefix."""
    size = prefix_size(data)
    if len(data) < size or (size == _PREFIX.size and data[0] != 0):
        raise ValueError(f"{data[:5].hex() or 'nothing'} is not 00 and a schema id, Confluent's wire format")
    schema_id: int = (_PREFIX if size == _PREFIX.size else _SINGLE_PREFIX).unpack_from(data)[1]
    return schema_id, data[size:]


class SchemaStore(ABC):
    """Where schemas are kept. Methods raise :class:`RegistryError`.

    It ``refuses`` schemas that are incompatible with earlier ones, or takes all.
    """

    refuses = False

    @abstractmethod
    def check(self) -> None:
        """Make sure that it answers and lets us in."""

    @abstractmethod
    def register(self, subject: str, schema: Schema) -> int:
        """Return the id of ``schema``, keeping it under ``subject`` if it is not there yet.

        Raises :class:`SchemaRefusedError` where the schema is to blame.
        """

    @abstractmethod
    def schema(self, schema_id: int) -> dict[str, Any]:
        """Return the schema with the id ``schema_id``, as JSON gives it."""

    @abstractmethod
    def subject_schemas(self, subject: str) -> dict[int, dict[str, Any]]:
        """Return every schema that is kept under ``subject``, by its id; empty where there is none."""

    def accepts_any(self, subject: str) -> bool:  # noqa: ARG002 - where there are no levels
        """Return whether a subject has the compatibility level NONE, and others have not."""
        return False

    @abstractmethod
    def confirm(self, subject: str, schema: Schema, schema_id: int) -> None:
        """Make sure that ``schema_id``, of an earlier session, is that of ``schema``; keep it again if not.

        Raises :class:`SchemaLostError` where that cannot be.
        """

    def look(self) -> None:
        """Once a minute, in the background, make sure that schemas in use are still kept.

        Raises :class:`SchemaLostError` once it was found that one is not. Costs nothing in between.
        """
        if self._lost is not None:
            raise self._lost
        now = time.monotonic()
        if now < self._look_at or not self._in_use or (self._looking and self._looking.is_alive()):
            return
        self._look_at = now + _LOOK_EVERY_S
        self._looking = threading.Thread(target=self._look, name="schemas", daemon=True)
        self._looking.start()

    _lost: "SchemaLostError | None" = None
    _look_at = 0.0
    _looking: threading.Thread | None = None

    def _look(self) -> None:
        try:
            self.confirm_in_use()
        except SchemaLostError as error:
            self._lost = error
        except UserError as error:
            _log.warning("schemas cannot be looked up at the moment", reason=error.message)

    @property
    @abstractmethod
    def _in_use(self) -> bool:
        """Whether a schema was registered or confirmed."""

    @abstractmethod
    def confirm_in_use(self) -> None:
        """Make sure of schemas in use as :meth:`confirm` does."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def schema_text(subject: str, schema: Schema) -> bytes:
    """Write a schema as it is kept; raises :class:`SchemaRefusedError` where it cannot be."""
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise SchemaRefusedError(f"the schema of {subject} is not text: {error}") from None
    if len(data) > _LONGEST_SCHEMA:
        raise SchemaRefusedError(
            f"the schema of {subject} has {len(data):,} bytes; one of more than {_LONGEST_SCHEMA:,} is not "
            "registered, since it could not be read back"
        )
    return data


class SchemaRegistry(SchemaStore):
    """A schema registry, and what it is known to hold.

    Requests that fail for a reason which may pass are repeated for up to ``retry_s`` seconds, which must stay
    below the timeout of a Kafka transaction, and not beyond the moment when ``stop`` is set. Until the
    registry has answered once, only one that is slow is asked again: an address where nothing listens, or
    something else does, is a mistake to be told at once. Methods raise :class:`RegistryError`.
    """

    refuses = True

    def __init__(
        self, settings: RegistrySettings, *, retry_s: float = 20.0, stop: Event | None = None
    ) -> None:
        parts = urlsplit(settings.url or "")
        self._place = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        headers = dict(_HEADERS)
        if settings.username is not None and settings.password is not None:
            known = basic_authorization(settings.username, settings.password.get_secret_value())
            headers["Authorization"] = known
        elif parts.username is not None:
            known = basic_authorization(unquote(parts.username), unquote(parts.password or ""))
            headers["Authorization"] = known
        self._client = BoundedHttp(
            self._place,
            headers=headers,
            tls=_tls(settings),
            timeout_s=_REQUEST_TIMEOUT_S,
            limit=_LONGEST_ANSWER,
        )
        self._retry_s = retry_s
        self._stop = stop or Event()
        self._met = False
        # By subject and SHA-256 of the schema, which is larger than all else that is kept of a table.
        self._ids: dict[tuple[str, bytes], int] = {}
        self._schemas: dict[int, dict[str, Any]] = {}
        self._used: dict[int, tuple[str, bytes]] = {}
        """Subject and compressed schema, by id."""
        self._looked_at: list[int] = []

    def check(self) -> None:
        """Make sure that the registry answers and lets us in."""
        self._ask("list of subjects", "/subjects", _begins_a_list, whole=False)

    def register(self, subject: str, schema: Schema) -> int:
        """Return the id of ``schema``, registering it under ``subject`` if it is not there yet.

        A registry refuses a schema that is not compatible with the subject's last one: its level is never
        changed here. Raises :class:`SchemaRefusedError` where the schema is to blame.
        """
        data = schema_text(subject, schema)
        digest = hashlib.sha256(data).digest()
        known = self._ids.get((subject, digest))
        if known is not None:
            return known
        schema_id = self._register(subject, data)
        if not self._gives_back(schema_id, schema, wait_s=self._retry_s):
            raise SchemaLostError(self._where, subject, schema_id, "another schema than was just registered")
        self._ids[subject, digest] = schema_id
        self._used[schema_id] = subject, zlib.compress(data)
        return schema_id

    def _register(self, subject: str, data: bytes) -> int:
        return self._ask(
            f"schema of {subject}",
            f"/subjects/{quote(subject, safe='')}/versions",
            _id,
            post={"schemaType": "AVRO", "schema": data.decode()},
            of_the_schema=_OF_THE_SCHEMA,
        )

    @property
    def _where(self) -> str:
        return f"the schema registry at {self._place}"

    def _gives_back(self, schema_id: int, schema: Schema, *, wait_s: float = 0.0) -> bool:
        """Ask for the schema of an id, and compare; raises UnknownSchemaError where there is none.

        One that was registered a moment ago may not have come to each server of a registry: ``wait_s``.
        """
        deadline = time.monotonic() + wait_s
        while True:
            try:
                text = self._ask(f"schema {schema_id}", f"/schemas/ids/{schema_id}", _text_in("schema"))
                break
            except UnknownSchemaError:
                if time.monotonic() >= deadline or self._stop.wait(_FIRST_WAIT_S):
                    raise
        try:
            return same_schema(_parsed(text), schema)
        except ValueError:
            return False

    def confirm(self, subject: str, schema: Schema, schema_id: int) -> None:
        """Make sure that ``schema_id``, of an earlier session, is that of ``schema``; register it if need be.

        Raises :class:`SchemaLostError` where the id is another schema's, or registering gives another id.
        """
        data = schema_text(subject, schema)
        if schema_id >= 0:
            try:
                kept = self._gives_back(schema_id, schema)
            except UnknownSchemaError:
                _log.warning("registering a schema again", subject=subject, schema_id=schema_id)
                try:
                    again = self._register(subject, data)
                except SchemaRefusedError as error:
                    raise SchemaLostError(self._where, subject, schema_id, "no schema") from error
                if again != schema_id:
                    raise SchemaLostError(self._where, subject, schema_id, "no schema") from None
                kept = self._gives_back(schema_id, schema)
            if not kept:
                raise SchemaLostError(self._where, subject, schema_id, "another schema")
        self._ids[subject, hashlib.sha256(data).digest()] = schema_id
        self._used[schema_id] = subject, zlib.compress(data)

    @property
    def _in_use(self) -> bool:
        return bool(self._used)

    def confirm_in_use(self) -> None:
        """Make sure of the schema with the highest id, the first that a copy lacks, and of others in turn."""
        if not self._looked_at:
            self._looked_at = sorted(self._used)
        now, self._looked_at = self._looked_at[:_MOST_LOOKED_AT], self._looked_at[_MOST_LOOKED_AT:]
        for schema_id in dict.fromkeys([max(self._used), *now]):
            subject, data = self._used[schema_id]
            self.confirm(subject, json.loads(zlib.decompress(data)), schema_id)

    def schema(self, schema_id: int) -> dict[str, Any]:
        """Return the schema with the id ``schema_id``, as JSON gives it."""
        known = self._schemas.get(schema_id)
        if known is None and schema_id < 0:
            raise UnknownSchemaError(
                "a record was written without a schema registry, and MILLRACE_REGISTRY_URL is set: leave it "
                "out, or have 'millrace reprocess' write the records again"
            )
        if known is None:
            text = self._ask(f"schema {schema_id}", f"/schemas/ids/{schema_id}", _text_in("schema"))
            known = self._schemas[schema_id] = self._checked(schema_id, text)
        return known

    def subject_schemas(self, subject: str) -> dict[int, dict[str, Any]]:
        """Return every schema that is registered under ``subject``, by its id; empty where there is none."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        try:
            versions = self._ask(f"versions of {subject}", path, _versions)
        except UnknownSchemaError:
            return {}
        found: dict[int, dict[str, Any]] = {}
        for version in versions:
            what = f"version {version} of {subject}"
            schema_id, text = self._ask(what, f"{path}/{version}", _id_and_text)
            found[schema_id] = self._checked(schema_id, text)
        return found

    def _checked(self, schema_id: int, text: str) -> dict[str, Any]:
        """Return a schema that is safe to read records by; see :mod:`millrace.avro.foreign`."""
        try:
            schema: dict[str, Any] = _parsed(text)
            check_schema(schema)
        except ValueError as error:
            raise RegistryError(
                f"the schema registry at {self._place} returned a schema {schema_id} that cannot be used: "
                f"{_short(str(error))}"
            ) from None
        return schema

    def compatibility(self) -> str:
        """Return the level that holds for subjects without one of their own: BACKWARD, NONE, …."""
        return _short(self._ask("compatibility level", "/config", _text_in("compatibilityLevel")))

    def accepts_any(self, subject: str) -> bool:
        """Return whether a subject has the compatibility level NONE, and others have not.

        Of a subject without a level of its own, Apicurio says NONE unless it is asked for that of all.
        """
        path = f"/config/{quote(subject, safe='')}?defaultToGlobal=true"
        own = self._ask(f"level of {subject}", path, _text_in("compatibilityLevel"))
        return own == "NONE" and self.compatibility() != "NONE"

    def mode(self) -> str:
        """Return whether schemas may be registered: READWRITE, READONLY, …."""
        return _short(self._ask("mode", "/mode", _text_in("mode")))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(
        self,
        what: str,
        path: str,
        understand: Callable[[bytes], T],
        *,
        post: dict[str, str] | None = None,
        of_the_schema: frozenset[int] = frozenset(),
        whole: bool = True,
    ) -> T:
        """Make a request, again and again where its failure may pass.

        ``understand`` takes the body of the answer, and raises ValueError where it is not what it should be.
        ``of_the_schema`` are statuses by which the registry refuses not us but the schema at hand. Without
        ``whole`` a body that is too long is given as far as it was read.
        """
        method = "POST" if post else "GET"
        content = json.dumps(post).encode() if post else None
        deadline = time.monotonic() + self._retry_s
        wait = _FIRST_WAIT_S
        while True:
            try:
                answer = self._client.request(method, path, content)
            except (UnicodeError, InvalidURL) as error:
                raise RegistryError(
                    f"{self._place} cannot be a schema registry ({error}): check MILLRACE_REGISTRY_URL"
                ) from None
            except (OSError, HTTPException) as error:
                failure, may_pass = self._silence(error), self._met or isinstance(error, TimeoutError)
            else:
                if 200 <= answer.status < 300:
                    return self._understood(answer, understand, whole=whole)
                failure = self._refusal(what, answer, of_the_schema)
                may_pass = self._met and answer.status in _MAY_PASS
                self._met |= isinstance(failure, UnknownSchemaError)
            if not may_pass or time.monotonic() + wait > deadline or self._stop.is_set():
                raise failure
            _log.warning("registry does not answer, trying again", wait_s=wait, reason=failure.message)
            self._stop.wait(wait * (0.5 + random.random() / 2))  # noqa: S311 - spreads the load, hides nothing
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _understood(self, answer: Answer, understand: Callable[[bytes], T], *, whole: bool) -> T:
        try:
            found = understand(_of_bounded_size(answer.body) if whole else answer.body)
        except ValueError as error:
            raise RegistryError(
                f"what answers at {self._place} is not a schema registry ({_short(str(error))}): {_URL_HINT}"
            ) from None
        self._met = True
        return found

    def _refusal(self, what: str, answer: Answer, of_the_schema: frozenset[int]) -> RegistryError:
        status = answer.status
        code, reason = _error_in(answer.body)
        kind = RegistryError
        if status in of_the_schema and (status == _TOO_LARGE or code not in {None, _NOT_PERMITTED}):
            kind = IncompatibleSchemaError if status == _INCOMPATIBLE else SchemaRefusedError
        if status in {401, 403}:
            return kind(
                f"the schema registry at {self._place} refuses us (HTTP {status}): set "
                "MILLRACE_REGISTRY_USERNAME and _PASSWORD to a user who may read and register schemas"
            )
        if 300 <= status < 400:
            return kind(
                f"what answers at {self._place} refers us elsewhere (HTTP {status}), where a password is not "
                "sent: set MILLRACE_REGISTRY_URL to the registry's own address"
            )
        if status == 404 and not str(code).startswith("404"):
            return kind(f"there is no schema registry at {self._place} (HTTP 404): {_URL_HINT}")
        if status == 404 and kind is RegistryError:
            kind = UnknownSchemaError
        said = f": {reason}" if reason else ""
        return kind(f"the schema registry at {self._place} refuses the {what} (HTTP {status}){said}")

    def _silence(self, error: Exception) -> RegistryError:
        hint = "is it running, and is MILLRACE_REGISTRY_URL right?"
        reason = _short(str(error)) or type(error).__name__
        match error:
            case TimeoutError():
                reason = f"no whole answer within {_REQUEST_TIMEOUT_S:g} s"
            case ssl.SSLCertVerificationError():
                hint = "set MILLRACE_REGISTRY_SSL_CA_LOCATION to the CA that signs its certificate"
            case ssl.SSLError() if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
                hint = (
                    "does it ask for a certificate of ours, and take the one in "
                    "MILLRACE_REGISTRY_SSL_CERTIFICATE_LOCATION?"
                )
            case ssl.SSLError():
                hint = "is it https:// or http:// in MILLRACE_REGISTRY_URL?"
        return RegistryError(f"the schema registry at {self._place} does not answer ({reason}): {hint}")


def full_name(schema: Any) -> str:
    """Return the name of a record with its namespace; empty where a schema has none."""
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        return ""
    name, namespace = schema["name"], schema.get("namespace")
    return name if "." in name or not namespace else f"{namespace}.{name}"


_OF_NAMES: Final = frozenset({"record", "enum", "fixed", "error"})
_NO_MATTER: Final = frozenset({"doc", "aliases", "default", "namespace"})
"""Attributes of a schema that do not change how records are read by it."""


def same_schema(one: Schema, other: Schema) -> bool:
    """Return whether records are read alike by two schemas, however these are written."""
    return bool(_normal(one, "") == _normal(other, ""))


def _normal(schema: Any, namespace: str) -> Any:
    """Return a schema with full names and without what does not matter; logical types do."""
    if isinstance(schema, list):
        return [_normal(branch, namespace) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVE or "." in schema or not namespace else f"{namespace}.{schema}"
    if not isinstance(schema, dict):
        raise ValueError(f"{_short(json.dumps(schema), 40)} is no schema")  # noqa: TRY004 - as above
    found = {name: value for name, value in schema.items() if name not in _NO_MATTER}
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _OF_NAMES:
        name = str(schema.get("name"))
        namespace = name.rpartition(".")[0] if "." in name else str(schema.get("namespace") or namespace)
        found["name"] = name if "." in name or not namespace else f"{namespace}.{name}"
        if "fields" in schema:
            found["fields"] = [
                {
                    **{name: value for name, value in field.items() if name not in _NO_MATTER},
                    "type": _normal(field.get("type"), namespace),
                }
                for field in schema["fields"]
            ]
        return found
    found["type"] = _normal(kind, namespace)
    for part in ("items", "values"):
        if part in schema:
            found[part] = _normal(schema[part], namespace)
    return found["type"] if len(found) == 1 else found


_PRIMITIVE: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map"}
)


def _tls(settings: RegistrySettings) -> ssl.SSLContext:
    """Return how TLS is spoken with the registry; raises :class:`RegistryError` for files that are no use."""
    password = settings.ssl_key_password
    try:
        if urlsplit(settings.url or "").scheme == "https" or settings.ssl_ca_location is not None:
            tls = ssl.create_default_context(cafile=settings.ssl_ca_location)
        else:  # the system's certificates, which take 30 ms to load, are not needed
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    except (OSError, ValueError) as error:
        raise RegistryError(f"MILLRACE_REGISTRY_SSL_CA_LOCATION cannot be used: {error}") from None
    if settings.ssl_certificate_location is not None:
        try:
            tls.load_cert_chain(
                settings.ssl_certificate_location,
                settings.ssl_key_location,
                # Without one OpenSSL would ask for it at the terminal.
                password="" if password is None else password.get_secret_value(),
            )
        except (OSError, ValueError) as error:
            raise RegistryError(
                "MILLRACE_REGISTRY_SSL_CERTIFICATE_LOCATION, _KEY_LOCATION and _KEY_PASSWORD cannot be used: "
                f"{error}"
            ) from None
    return tls


def _short(text: str, most: int = 300) -> str:
    """Return what a registry says, fit for a line."""
    return printable(text) if len(text) <= most else printable(text[: most - 1]) + "…"


def _of_bounded_size(body: bytes) -> bytes:
    if len(body) > _LONGEST_ANSWER:
        raise ValueError(f"it sends more than {_LONGEST_ANSWER >> 20} MiB")
    return body


def _parsed(text: str | bytes) -> Any:
    """Parse JSON; raises ValueError also where brackets are nested beyond what can be parsed."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def _begins_a_list(body: bytes) -> None:
    if not body.lstrip().startswith(b"["):
        raise ValueError("its list of subjects is not a list")


def _object(body: bytes) -> dict[str, Any]:
    found = _parsed(body)
    if not isinstance(found, dict):
        raise ValueError("its answer is not an object")  # noqa: TRY004 - ValueError is what says so everywhere here
    return found


def _number(value: Any, name: str) -> int:
    """Check an id or version: Java's int, from 0."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError(f"its {name} is {_short(json.dumps(value), 40)}")
    return value


def _text_in(name: str) -> Callable[[bytes], str]:
    def understand(body: bytes) -> str:
        found = _object(body).get(name)
        if not isinstance(found, str):
            raise ValueError(f"its answer has no {name}")  # noqa: TRY004 - as above
        return found

    return understand


def _id(body: bytes) -> int:
    return _number(_object(body).get("id"), "id")


def _id_and_text(body: bytes) -> tuple[int, str]:
    return _id(body), _text_in("schema")(body)


def _versions(body: bytes) -> list[int]:
    found = _parsed(body)
    if not isinstance(found, list) or len(found) > _MOST_VERSIONS:
        raise ValueError(f"its answer is not a list of at most {_MOST_VERSIONS:,} versions")
    return [_number(version, "version") for version in found]


def _error_in(body: bytes) -> tuple[int | None, str]:
    """Return code and message of an error as the API words it; None and nothing where it is another's."""
    try:
        found = _object(body)
    except ValueError:
        return None, ""
    code, message = found.get("error_code"), found.get("message")
    return code if isinstance(code, int) else None, _short(message) if isinstance(message, str) else ""
