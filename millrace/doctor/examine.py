"""All checks of one source: its servers or files, Kafka, the registry.

Of a side that does not answer this is said, and the others are checked all the same.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

from millrace import kernel
from millrace.avro.registry import RegistryError, SchemaLostError, SchemaRegistry
from millrace.avro.service_state import DecoderState, QuarantinedTable, ReaderState, RowMapperState
from millrace.avro.single_object import SingleObjectError
from millrace.contract import PAUSE, Topics
from millrace.dead_letters import lost_in_words, lost_tables
from millrace.decoder.settings import DecoderSettings
from millrace.doctor import (
    access_checks,
    kafka_checks,
    log_checks,
    registry_checks,
    selection_checks,
    table_checks,
)
from millrace.doctor.kafka_checks import Cluster
from millrace.doctor.server import Server
from millrace.finding import CheckResult, Finding, error, examine, ok, unchecked, warning
from millrace.installation import install_command
from millrace.kafka.client import AdminClient, connect
from millrace.kafka.continuity import ContinuityGuard, snapshot_loss
from millrace.kafka.errors import BrokerError
from millrace.kafka.inspect import look_at_cluster
from millrace.kafka.schema_topic import confirm_written, open_schemas
from millrace.kafka.state import decoded_state, read_state
from millrace.kernel import build
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.errors import SourceError
from millrace.reader.settings import ReaderSettings
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.settings import (
    KafkaSettings,
    RegistrySettings,
    ServiceSettings,
    TopicsSettings,
    load_settings,
)
from millrace.status.missing import shortfalls

_KAFKA: Final = "Kafka"
_REGISTRY: Final = "schema registry"
_SETTINGS: Final = "settings"
_MILLRACE: Final = "Millrace here"

S = TypeVar("S", bound=ServiceSettings)


@dataclass(slots=True)
class Sides:
    """What the settings of the three services say; None for a side that they do not name rightly."""

    names: Topics | None = None
    kafka: KafkaSettings | None = None
    topics: TopicsSettings | None = None
    reader: ReaderSettings | None = None
    registry: RegistrySettings | None = None
    rules: RowMapperSettings | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def reads_another(self) -> bool:
        """Whether decoder and row mapper read what the reader of another source writes."""
        return self.names is not None and self.names.reads_another


def load_sides() -> Sides:
    """Read the settings as each service does, and keep what is wrong with them."""
    sides = Sides()
    problems: dict[type[ServiceSettings], Sequence[str]] = {}

    def load(settings_class: type[S]) -> S | None:
        try:
            settings = load_settings(settings_class)
        except SettingsError as failure:
            problems[settings_class] = failure.problems
            return None
        sides.names, sides.kafka, sides.topics = settings.names, settings.kafka, settings.topics
        return settings

    sides.reader = load(ReaderSettings)
    decoder, rowmapper = load(DecoderSettings), load(RowMapperSettings)
    if sides.reads_another:
        problems.pop(ReaderSettings, None)
    if decoder is not None:
        sides.registry = decoder.registry
    if rowmapper is not None:
        sides.registry = rowmapper.registry
        sides.rules = rowmapper
    if sides.kafka is None:
        # Of no use to any service, but enough to look at Kafka.
        load(ServiceSettings)
    sides.problems = list(dict.fromkeys(chain.from_iterable(problems.values())))
    return sides


def findings(sides: Sides) -> Iterator[Finding]:
    """Run all checks: settings, then the source, Kafka, the registry."""
    for problem in sides.problems:
        yield Finding(_SETTINGS, "settings", error(problem, "see docs/configuration.md"))
    if not sides.problems:
        services = "decoder and row mapper" if sides.reads_another else "all three services"
        yield Finding(_SETTINGS, "settings", ok(f"complete for {services}"))
    yield Finding(_MILLRACE, "kernel", _kernel())
    of_kafka, state, topics = _kafka(sides)
    if sides.reader is not None:
        if sides.reader.files:
            yield Finding(sides.reader.files, "files", _files(sides.reader.files))
        else:
            yield from _servers(sides.reader, state, topics, sides.rules)
    yield from of_kafka
    if sides.kafka is not None and sides.names is not None and sides.names.state in topics:
        yield from _source(sides.kafka, sides.names)
    if sides.registry is not None:
        yield from _registry(sides.registry, sides.names)
    if sides.registry is not None and sides.kafka is not None and sides.names is not None and topics:
        yield Finding(_REGISTRY, "schemas", _written(sides.kafka, sides.registry, sides.names))


def _kernel() -> CheckResult:
    """Say whether the compiled kernel would do the work of services that run where we do."""
    slow = "the reference codec does the work, several times as slowly"
    match kernel.state():
        case "on":
            return ok("on")
        case "off":
            return warning(f"turned off, {slow}", "unset MILLRACE_KERNEL")
        case "altered":
            command = f"{shlex.quote(sys.executable)} -P -m millrace.kernel.build --force"
            return error(
                f"{kernel.altered()} is not the library that was built, so {slow}",
                f"find out who has altered it; then build it again: {command}",
            )
        case "not built":
            missing = build.what_is_missing()
            command = f"{shlex.quote(sys.executable)} -P -m millrace.kernel.build"
            return warning(
                f"not built: {missing or 'Cython was not there'}; {slow}",
                f"{'provide that, then ' if missing else ''}run: {install_command('kernel')} && {command}",
            )


def _servers(
    reader: ReaderSettings,
    state: ReaderState | None,
    topics: frozenset[str],
    rules: RowMapperSettings | None,
) -> Iterator[Finding]:
    addresses = reader.mysql.addresses()
    for address in addresses:
        place = f"server {address}"
        try:
            with MysqlConnection(address) as connection:
                yield Finding(place, "connection", ok(f"as {address.user}"))
                server = Server(
                    connection,
                    server_id=reader.replica_server_id,
                    replica_name=f"millrace-{reader.source}",
                    allow_statements=reader.mysql.allow_statements,
                    include_query=rules is not None and rules.rows.include_query,
                    rules=rules,
                    semi_sync=reader.semi_sync,
                    start=reader.start,
                    one_of_several=len(addresses) > 1,
                    state=state,
                    source=reader.source,
                    topic_named=reader.topics.named,
                    topics=topics,
                )
                yield from _server(place, server)
        except SourceError as failure:
            yield Finding(place, "connection", _unreachable(address, failure))


def _server(place: str, server: Server) -> Iterator[Finding]:
    yield from examine(place, server, access_checks.CHECKS, SourceError)
    if server.is_on("log_bin"):
        yield from examine(place, server, log_checks.CHECKS, SourceError)
    else:
        yield from examine(place, server, (log_checks.log_bin,), SourceError)
    yield from examine(place, server, table_checks.CHECKS, SourceError)
    yield from examine(place, server, selection_checks.CHECKS, SourceError)


def _unreachable(address: MysqlAddress, failure: SourceError) -> CheckResult:
    return error(
        str(failure), f"see what the line names; without a connection nothing at {address} is checked"
    )


def _kafka(sides: Sides) -> tuple[list[Finding], ReaderState | None, frozenset[str]]:
    """Check Kafka; return the findings, the reader's state, and the topics for the server's checks."""
    topics: frozenset[str] = frozenset()
    if sides.kafka is None or sides.topics is None or sides.names is None:
        return [], None, topics
    found: list[Finding] = []
    state = None
    try:
        admin = connect(sides.kafka)
        found.append(Finding(_KAFKA, "connection", ok(sides.kafka.bootstrap_servers)))
        cluster = Cluster(
            sides.names,
            look_at_cluster(admin, f"{sides.names.source}."),
            sides.topics,
            semi_sync=sides.reader is not None and sides.reader.semi_sync,
            compression=sides.kafka.compression,
        )
        topics = cluster.view.all_topics
        found += examine(_KAFKA, cluster, kafka_checks.CHECKS, BrokerError)
        if sides.names.state in topics:
            state = _reader_state(sides.kafka, sides.names.source)
            lost = list(_losses(admin, sides.kafka, sides.names)) or [ok("none known")]
            found += [Finding(_KAFKA, "losses", outcome) for outcome in lost]
    except BrokerError as failure:
        found.append(
            Finding(_KAFKA, "connection", error(failure.message, "no service can start without Kafka"))
        )
    except SingleObjectError as failure:
        found.append(
            Finding(
                _KAFKA,
                "reader_state",
                error(f"the reader's state cannot be read: {failure}", "was it written by a newer version?"),
            )
        )
    return found, state, topics


def _source(kafka: KafkaSettings, names: Topics) -> Iterator[Finding]:
    """Say what the states of the services tell of the source."""
    place = f"source {names.source}"
    try:
        pause = read_state(kafka, names.source, PAUSE, undecided=False)
        if pause is not None and pause.value is not None:
            yield Finding(
                place,
                "pause",
                warning(f"paused, by {pause.owner}: no service works", "'millrace resume' resumes it"),
            )
        found = list(shortfalls(kafka, names))
    except (BrokerError, SingleObjectError) as failure:
        reason = failure.message if isinstance(failure, BrokerError) else failure
        yield Finding(
            place, "missing", warning(f"cannot be checked: {reason}", "see there, then run this again")
        )
        return
    if not found:
        yield Finding(
            place,
            "missing",
            ok("by the states of row mapper and snapshot nothing is missing, and nothing waits"),
        )
    for one in found:
        yield Finding(place, one.kind, warning(one.text, one.advice))


def _losses(admin: AdminClient, kafka: KafkaSettings, names: Topics) -> Iterator[CheckResult]:
    """Look whether topics are those that the states belong to, and what was deleted before it was used."""
    section = "see docs/how-to/recover.md#a-topic-that-changed"
    kinds = {"decoder": DecoderState, "rowmapper": RowMapperState}
    if not names.reads_another:
        kinds = {"reader": ReaderState, **kinds}
    quarantined: Sequence[QuarantinedTable] = ()
    for service, kind in kinds.items():
        try:
            state = decoded_state(kafka, names.source, service, kind, undecided=False)
            if state is not None:
                ContinuityGuard(kafka, admin, names, service).check_ids(state.continuity)
        except UserError as failure:
            yield error(failure.message, section)
            continue
        if isinstance(state, RowMapperState):
            quarantined = state.quarantined
    snapshot = snapshot_loss(kafka, admin, names)
    if snapshot is not None:
        yield error(snapshot, "run 'millrace snapshot --restart'")
    words = lost_in_words(names.deadletter, lost_tables(kafka, names.source, quarantined))
    if words is not None:
        yield error(
            words,
            "run 'millrace reprocess', which writes the row topics again from the raw topic; or 'millrace "
            "deadletter discard', and a snapshot of the table",
        )


def _reader_state(settings: KafkaSettings, source: str) -> ReaderState | None:
    stored = read_state(settings, source, "reader")
    return None if stored is None or stored.value is None else ReaderState.from_bytes(stored.value)


def _written(kafka: KafkaSettings, registry: RegistrySettings, names: Topics) -> CheckResult:
    """Say whether the last record of each topic can be read by the schema that it names."""
    try:
        with open_schemas(kafka, registry, names.source) as schemas:
            confirm_written(kafka, connect(kafka), schemas, names, rows=True)
    except SchemaLostError as failure:
        return error(failure.message, "see there")
    except UserError as failure:
        return unchecked(failure.message, "see there, then run this again")
    return ok("the last record of each topic names a schema by which it can be read")


def _registry(settings: RegistrySettings, names: Topics | None) -> Iterator[Finding]:
    if settings.url is None:
        topic = Topics("").avro if names is None else names.avro
        kept = f"none (MILLRACE_REGISTRY_URL is not set): schemas are in the topic {topic}"
        yield Finding(_REGISTRY, "connection", ok(kept))
        return
    try:
        with SchemaRegistry(settings) as registry:
            registry.check()
            yield from examine(_REGISTRY, registry, registry_checks.CHECKS, RegistryError)
    except RegistryError as failure:
        advice = "decoder and row mapper cannot start without it; the reader can"
        yield Finding(_REGISTRY, "connection", error(failure.message, advice))


def _files(patterns: str) -> CheckResult:
    """Look whether there are log files, and whether they can be read."""
    parts = [Path(part.strip()) for part in patterns.split(",") if part.strip()]
    paths = [path for part in parts for path in sorted(part.parent.glob(part.name))]
    unreadable = []
    for path in paths:
        try:
            with path.open("rb"):
                pass
        except OSError as failure:
            unreadable.append(f"{path}: {failure.strerror}")
    if not paths:
        return error("no file matches MILLRACE_FILES", "give paths, globs or a log's .index file")
    if unreadable:
        return error(
            f"cannot be read: {'; '.join(unreadable)}", "let the reader's user read them", unreadable
        )
    return ok(f"{len(paths)} can be read")
