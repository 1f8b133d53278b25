"""Binds tables: whose columns they are, how their rows are written, and to which topic.

A table is bound before its first row is published, and again whenever its table map changes: its columns get
their names (from the table map, else the catalogue, else their place), its schemas are registered, its topic
is created. What is bound is kept by the content of the table map, so that later statements find it at once.
All tables of a batch that are not bound are bound together.

The reader writes the catalogue when it connects and after statements that define tables, which the events do
not show. So it is looked at again, where names come from it, after each batch, each format description and
each such statement. A table map shows types alone: what a statement does to names, signs, character sets and
members is applied to the definitions before it (:mod:`millrace.rowmapper.catalog`). Where that is not
understood, rows wait that do not say by themselves what they are.

What goes wrong with one table is that table's trouble: :meth:`Binder.bind` raises it as a BinlogError.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from millrace import __version__
from millrace.avro.catalog import CatalogEntry
from millrace.avro.column_values import ColumnValues
from millrace.avro.compatibility import (
    AlteredColumn,
    WrittenKey,
    in_sql,
    key_in_words,
    likely_sql_type,
    type_in_words,
)
from millrace.avro.registry import key_subject, value_subject, wire_prefix
from millrace.avro.row_records import (
    EventMetadata,
    RowEncoder,
    RowsEventWriter,
    TableSchemas,
    has_this_envelope,
    origin,
    table_schemas,
    truncation,
)
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import TableTopic
from millrace.avro.transactions import table_writer
from millrace.binlog.columns import AvroOptions, codec_of
from millrace.binlog.declaration import EVENTS
from millrace.binlog.errors import BinlogError, InvalidValueError, TooLargeError
from millrace.binlog.events.rows import PartialUpdateRowsEvent, RowsEvent, RowsOperation, TableMapEvent
from millrace.binlog.row_images import RowImages
from millrace.binlog.server_version import ServerVersion
from millrace.binlog.table import (
    ResolvedTable,
    SchemaMismatchError,
    TableDefinition,
    column_of,
    former_columns,
    resolve_columns,
)
from millrace.contract import (
    TOPIC_NAME_LIMIT,
    SourcePosition,
    first_version,
    metric_name,
    version_number,
)
from millrace.ddl import MISSING, Session, Unknown
from millrace.kafka.topics import TableTopicInfo
from millrace.rowmapper.catalog import Catalog, Found
from millrace.rowmapper.json_format import JsonFormat
from millrace.rowmapper.known_rows import RowLayout
from millrace.rowmapper.selection import RowFilter, Selection
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.logging import get_logger
from millrace.stage import Output

if TYPE_CHECKING:
    from millrace.binlog.columns.column import Column
    from millrace.kernel.rows import RowsKernel
    from millrace.kernel.transactions import TableWriter

_LOG = get_logger(__name__)
_MAX_IMAGES: Final = 256
"""Combinations of present columns that are kept per table: minimal images may have very many."""

Content = tuple[Any, ...]

Seen = tuple[TableMapEvent, SourcePosition, str | None]
"""A table map, where it stands, and the server's version there."""


TopicInfos = Mapping[str, TableTopicInfo | BinlogError]
"""What topics are like by their names, or what is wrong with them."""


class TableRefusedError(BinlogError):
    """Kafka or the registry refuses a table's topic or schema."""


class TableIncompatibleError(TableRefusedError):
    """Consumers of a table's topic would read by its schema other values or keys than there are."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. Give the table another topic with MILLRACE_TOPICS_NAMES "
            "(MILLRACE_ROWS_ON_INCOMPATIBLE=new-topic does so automatically), or let the subject accept it: "
            'PUT /config/SUBJECT with {"compatibility": "NONE"}; then \'millrace deadletter redrive\' '
            "continues with it"
        )


class AlteredColumnsError(TableIncompatibleError):
    """The schema of a subject is incompatible by some columns."""

    def __init__(
        self,
        subject: str,
        columns: Sequence[AlteredColumn],
        effect: str,
        sql_types: Callable[[AlteredColumn], tuple[str, str]] = lambda column: (
            likely_sql_type(column.was),
            likely_sql_type(column.now),
        ),
    ) -> None:
        super().__init__(
            f"{subject}: {'; '.join(one.in_words(*sql_types(one)) for one in columns)}, {effect}"
        )
        self.subject, self.columns, self.effect = subject, columns, effect


@dataclass(frozen=True, slots=True)
class _Key:
    """The key of a topic: the id of the schema by which it is written, and the fingerprint of the newest."""

    id: int
    fingerprint: str
    written: WrittenKey


@dataclass(slots=True)
class BoundTable:
    """A table as one content of its table map has it, ready to write rows."""

    table: ResolvedTable
    encoder: RowEncoder
    topic: str
    partitions: int
    schema_source: str
    found: Found | None
    options: AvroOptions
    max_unpacked: int
    """How many bytes the compressed columns of one event may unpack to."""
    known: TableTopic
    filter: RowFilter | None = None
    name: tuple[str, str] = field(init=False)
    _images: "dict[tuple[type, bytes, bytes], tuple[RowImages, RowsKernel | None]]" = field(
        default_factory=dict, init=False
    )
    _compiled: "TableWriter | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.name = self.table.database, self.table.table

    def write(self, event: RowsEvent, writer: RowsEventWriter) -> None:
        """Write the rows of an event; raises BinlogError where its images are malformed or lack the key."""
        kind = (type(event), event.columns_before_image, event.columns_after_image)
        bound = self._images.get(kind)
        if bound is None:
            if len(self._images) >= _MAX_IMAGES:
                self._images.clear()
            partial = isinstance(event, PartialUpdateRowsEvent)
            bound = self._images[kind] = self._bind(event, partial=partial)
        if self.filter is None:
            writer.write_bytes(event.operation, event.rows, *bound)
        else:
            self._write_chosen(self.filter, event, bound[0], writer)

    @staticmethod
    def _write_chosen(
        chosen_by: RowFilter, event: RowsEvent, images: RowImages, writer: RowsEventWriter
    ) -> None:
        if writer.left_out & chosen_by.ordinals:
            raise TooLargeError("a value by which MILLRACE_ROWS_FILTER selects rows is too large to be held")
        chosen = chosen_by.choose(images, event)
        writer.write_chosen(event.operation, images.avro(event.rows), chosen)

    def count(self, event: RowsEvent) -> int:
        """Count the rows of an event; raises BinlogError."""
        images, _ = self._bind(event, partial=isinstance(event, PartialUpdateRowsEvent))
        return images.count(event.rows)

    def compiled(self) -> "TableWriter":
        """Return this table as the kernel for transactions takes it."""
        if self._compiled is None:
            self._compiled = table_writer(
                self.encoder,
                self.name,
                self.schema_source,
                topic=self.topic,
                partitions=self.partitions,
                images=self._compiled_images,
            )
        return self._compiled

    def _compiled_images(
        self, type_code: int, before: bytes, after: bytes
    ) -> "tuple[RowsKernel, bytes, bytes, bytes] | None":
        """Bind images for the kernel; None where the reference must, which may be because it cannot."""
        event_class = EVENTS[type_code].event_class
        assert issubclass(event_class, RowsEvent)
        writes, deletes = (
            event_class.operation is each for each in (RowsOperation.WRITE, RowsOperation.DELETE)
        )
        try:
            if self.encoder.marks and not writes:
                return None
            native = self.encoder.kernel(None if writes else before, None if deletes else after)
            missing = [self.encoder.side(bitmap)[1] for bitmap in (before, b"", after)]
        except BinlogError:
            return None
        if native is None:
            return None
        return native, missing[0] + missing[2], missing[0] + missing[1], missing[1] + missing[2]

    def _bind(self, event: RowsEvent, *, partial: bool) -> "tuple[RowImages, RowsKernel | None]":
        images = RowImages(
            self.table.columns,
            *event.bitmaps,
            options=self.options,
            partial_json=partial,
            max_unpacked=self.max_unpacked,
        )
        return images, None if partial else self.encoder.kernel(*event.bitmaps)


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A table whose columns are known, on its way to be bound."""

    table: ResolvedTable
    schema_source: str
    found: Found | None
    topic: str
    schemas: TableSchemas
    ruled: dict[int, ColumnValues]
    filter: RowFilter | None
    value_fingerprint: str
    place: SourcePosition
    is_mariadb: bool


class Binder:
    """Binds table maps.

    ``ensure_topics`` begins to create table topics unless they exist, given by name with the id that a topic
    must have, None for any; it gives what waits for what they are like. ``register`` gives the ids of
    schemas, given with their subjects, or what is wrong with one, ``schema`` the schema of an id.
    ``accepts_any`` says whether a subject was told to accept incompatible schemas.
    ``read_catalog`` gives the definitions that have come since it was called last; ``catalog_grew`` says
    whether there are any, and may answer no for a while unless it ``must`` look. All of them may take their
    time.

    ``json_format`` is that of the records where they are not sent as Avro.

    ``catalog`` has what statements made of definitions so far. ``known`` is what earlier row mappers noted of
    the topics of tables, ``refused`` why topics took no rows
    since this process has started. With ``accept_topics`` a topic that was deleted, or is another one, is
    taken as it is. With ``without_topics`` rows go into columns: names of topics are not claimed, and where
    the kernel is built rows are in blocks.
    """

    def __init__(
        self,
        settings: RowMapperSettings,
        *,
        ensure_topics: Callable[[Mapping[str, str | None]], Callable[[], TopicInfos]],
        register: Callable[[Sequence[tuple[str, dict[str, Any]]]], Sequence[int | BinlogError]],
        schema: Callable[[int], dict[str, Any]],
        confirm: Callable[[Sequence[tuple[str, dict[str, Any], int]]], None] = lambda _: None,
        accepts_any: Callable[[str], bool] = lambda _: False,
        read_catalog: Callable[[], Iterable[CatalogEntry]],
        catalog_grew: Callable[[bool], bool],
        known: Iterable[TableTopic] = (),
        refused: Mapping[str, str] | None = None,
        catalog: Catalog | None = None,
        json_format: JsonFormat | None = None,
        accept_topics: bool = False,
        without_topics: bool = False,
    ) -> None:
        self.selection = Selection(settings)
        self._source = settings.source
        self._avro = settings.rows.avro
        self._rows = settings.rows
        self._max_unpacked = settings.rows.unpacked_mib << 20
        self._topics = settings.names
        self._max_tables = settings.topics.max_tables
        self._opens_versions = settings.rows.on_incompatible == "new-topic"
        self._ensure_topics = ensure_topics
        self._register = register
        self._schema = schema
        self._confirm = confirm
        self._accepts_any = accepts_any
        self._read_catalog = read_catalog
        self._catalog_grew = catalog_grew
        self.json_format = json_format
        self._accept_topics = accept_topics
        self._without_topics = without_topics
        self._trust_later = False
        self._look_due = self._must_look = False
        self._catalog = catalog or Catalog()
        self._known = {topic.topic: topic for topic in known}
        self._refused = refused or {}
        # Whose rows a topic has; and by what Kafka makes of its name in its metrics, which must be unique in
        # the cluster, the topic.
        self._owners = {topic.topic: (topic.database, topic.table) for topic in self._known.values()}
        self._metric_names = {metric_name(topic): topic for topic in self._known}
        # New versions of topics that may have no note yet.
        self._opened: set[str] = set()
        # Of topics whose tables were bound.
        self._keys: dict[str, _Key] = {}
        self._bound: dict[Content, BoundTable] = {}
        self._looked_up: Callable[[], TopicInfos] | None = None
        self._layouts: dict[tuple[str, str], tuple[Content, Found, RowLayout | None]] = {}
        self._failed: dict[Content, BinlogError] = {}

    # -- the catalogue --------------------------------------------------------------------------------

    def trust_later(self, reached: SourcePosition | None) -> None:
        """Let what contradicts the log give way to the first definition read later that agrees with it.

        So it is where tables are redriven. Up to ``reached`` all statements of the log were applied.
        """
        self._trust_later = self._accept_topics = True
        if reached is not None:
            self._catalog.reach(reached)

    def is_transactional(self, database: str, table: str, place: SourcePosition) -> bool:
        """Say whether a rollback undoes the rows of a table; so it is unless its engine is known not to."""
        self._look()
        found = self._catalog.find(database, table, place)
        if found is None:
            self.refresh()
            found = self._catalog.find(database, table, place)
        definition = None if found is None else found.definition
        return not isinstance(definition, TableDefinition) or definition.transactional is not False

    def exists(self, database: str, table: str, place: SourcePosition) -> bool:
        """Return whether a table is known to exist at ``place``."""
        self._look()
        found = self._catalog.find(database, table, place)
        return found is not None and found.definition is not MISSING

    def spelled(self, name: str) -> str:
        """Spell the name of a database or table in a statement as its rows have it."""
        return self._catalog.spelled(name)

    def look_again(self, *, must: bool = False) -> None:
        """Take note that the catalogue may have grown; ``must`` says that it is likely now."""
        self._look_due = True
        self._must_look |= must

    def define(
        self, text: str, session: Session, place: SourcePosition, *, whole: bool
    ) -> list[SchemaVersion]:
        """Apply a DDL statement at ``place``; give what is known of tables from there on."""
        self.look_again(must=True)
        self._look()
        versions = self._catalog.apply(text, session, place, whole=whole)
        for version in versions:
            if isinstance(version.state, Unknown) and not version.is_unnamed:
                _LOG.warning(
                    "the definition of a table is not known from a statement on",
                    table=f"{version.database}.{version.table}",
                    log_file=place.log_file,
                    position=place.position,
                    reason=version.state.reason,
                    advice="unless its rows tell their columns (binlog_row_metadata=FULL) they wait until "
                    "the reader has read it again; 'millrace deadletter redrive' publishes them",
                )
        return versions

    def begin(self, place: SourcePosition) -> SchemaVersion | None:
        """Apply statements from ``place`` on; give the note of that, where those before it are missed."""
        self.refresh()
        return self._catalog.begin(place)

    def gap(self, place: SourcePosition) -> SchemaVersion:
        """Let no definition hold beyond ``place``, before which changes are missing; give the note of it."""
        self.look_again(must=True)
        return self._catalog.gap(place)

    def _look(self) -> None:
        """Take in what the catalogue topic has by now, where it may have grown."""
        if self._look_due:
            must, self._look_due, self._must_look = self._must_look, False, False
            if self._catalog_grew(must):
                self.refresh()

    def refresh(self) -> None:
        """Take in the definitions that have come."""
        for entry in self._read_catalog():
            self._catalog.add(entry)

    def _find(self, table_map: TableMapEvent, place: SourcePosition, version: str | None) -> Found | None:
        """Return the definition that holds; with later ones, the first from there on that agrees."""
        if not self._trust_later:
            return self._catalog.find(table_map.database, table_map.table, place)
        candidates = self._catalog.since(table_map.database, table_map.table, place, unaltered=True)
        for found in candidates:
            if not isinstance(found.definition, TableDefinition):
                continue
            try:
                resolve_columns(table_map, found.definition, server_version=version)
            except SchemaMismatchError:
                continue
            return found
        return candidates[0] if candidates else None

    # -- binding --------------------------------------------------------------------------------------

    def prepare(self, seen: Iterable[Seen], later: Iterable[Seen] = ()) -> None:
        """Bind all tables that are not bound yet, together; what fails is raised when a row needs it.

        Kafka is asked already for the topics of those that are bound ``later``, by the next call.
        """
        looked_up, self._looked_up = self._looked_up, None
        wanted = dict(self._lacking(seen))
        if wanted:
            self.refresh()
            looked_up = looked_up or self._look_up(wanted)
            ahead = dict(self._lacking(later))
            self._looked_up = self._look_up(ahead) if ahead else None
            self._bind_all(wanted, looked_up)

    def lacks(self, seen: Iterable[Seen]) -> bool:
        """Return whether :meth:`prepare` has something to bind."""
        return any(self._lacking(seen))

    def _lacking(self, seen: Iterable[Seen]) -> Iterator[tuple[Content, Seen]]:
        for one in seen:
            table_map, _, version = one
            content = _content(table_map, version)
            if content not in self._bound and content not in self._failed:
                yield content, one

    def find(
        self, table_map: TableMapEvent, place: SourcePosition, version: str | None
    ) -> tuple[BoundTable, bool] | None:
        """Return what :meth:`bind` gives, if it is bound and noted, and whether it is so further on.

        That is until the catalogue is looked at again.
        """
        bound = self._bound.get(_content(table_map, version))
        if bound is None or self._known.get(bound.topic) != bound.known:
            return None
        if self._tells_all(bound):
            return bound, True
        self._look()
        if bound.found != self._find(table_map, place, version):
            return None
        since = self._catalog.since(table_map.database, table_map.table, place)
        return bound, not any(found.later for found in since)

    def _tells_all(self, bound: BoundTable) -> bool:
        """Return whether a table map says all of its columns that is needed."""
        return bound.table.schema_source == "table_map" and not self._avro.only_in_history

    def bind(self, table_map: TableMapEvent, place: SourcePosition, version: str | None) -> BoundTable:
        """Return the table of a table map; raises BinlogError where it cannot be bound.

        ``place`` is where its rows stand, ``version`` that of the last format description before them.
        """
        content = _content(table_map, version)
        bound = self._bound.get(content)
        if bound is not None:
            if self._tells_all(bound):
                return bound
            self._look()
            if bound.found == self._find(table_map, place, version):
                return bound
            del self._bound[content]
        failed = self._failed.pop(content, None)
        if failed is None:
            self.refresh()
            one = {content: (table_map, place, version)}
            self._bind_all(one, self._look_up(one))
            failed = self._failed.pop(content, None)
        if failed is not None:
            raise failed
        return self._bound[content]

    def layout(
        self, table_map: TableMapEvent, place: SourcePosition, version: str | None
    ) -> RowLayout | None:
        """Say how rows are known again; None where that is not certain from the definition at ``place``."""
        self._look()
        found = self._find(table_map, place, version)
        if found is None or found.later or not isinstance(found.definition, TableDefinition):
            return None
        name, content = (table_map.database, table_map.table), _content(table_map, version)
        known = self._layouts.get(name)
        if known is None or known[:2] != (content, found):
            try:
                table = resolve_columns(table_map, found.definition, server_version=version)
                layout = RowLayout.of(table, found.definition)
            except BinlogError:
                layout = None
            known = self._layouts[name] = content, found, layout
        return known[2]

    def _bind_all(self, wanted: Mapping[Content, Seen], looked_up: Callable[[], TopicInfos]) -> None:
        resolved: dict[Content, _Resolved] = {}
        for content, seen in wanted.items():
            try:
                resolved[content] = self._resolve(*seen)
            except BinlogError as error:
                self._failed[content] = error
        topics = self._make_topics(resolved, looked_up())
        ids = self._schema_ids(resolved)
        while again := self._next_versions(resolved, ids):
            resolved |= again
            topics |= self._make_topics(again, {})
            ids |= self._schema_ids(again)
        for content, one in resolved.items():
            info, key, value_id = topics[content], *ids[content]
            for outcome in (info, key, value_id):
                if isinstance(outcome, BinlogError):
                    self._failed[content] = outcome
                    break
            else:
                assert isinstance(info, TableTopicInfo)
                assert isinstance(value_id, int)
                self._bound[content] = self._bound_table(one, info, key, value_id)  # type: ignore[arg-type]  # no error

    def _next_versions(
        self,
        resolved: Mapping[Content, _Resolved],
        ids: Mapping[Content, tuple[_Key | BinlogError | None, int | BinlogError]],
    ) -> dict[Content, _Resolved]:
        """Return tables whose schema is refused as incompatible the next version of their topic."""
        again: dict[Content, _Resolved] = {}
        for content, one in resolved.items():
            topic = self._topics.version(first_version(one.topic), version_number(one.topic) + 1)
            incompatible = any(isinstance(each, TableIncompatibleError) for each in ids[content])
            if not incompatible or not self._opens_versions or len(topic) > TOPIC_NAME_LIMIT:
                continue
            _LOG.warning(
                "rows of a table continue in another topic: its schema is incompatible with the one before",
                table=f"{one.table.database}.{one.table.table}",
                topic=topic,
            )
            again[content] = replace(one, topic=topic)
            self._opened.add(topic)
            # What was bound to the version before does not go back to it.
            self._bound = {key: bound for key, bound in self._bound.items() if bound.topic != one.topic}
        return again

    def _topic_of(self, database: str, table: str) -> str:
        """Name the topic of a table: the last version that there is."""
        topic = self._topics.table(*self.selection.topic_of(database, table))
        number = 1
        while (later := self._topics.version(topic, number + 1)) in self._known or later in self._opened:
            number += 1
        return self._topics.version(topic, number)

    def _resolve(self, table_map: TableMapEvent, place: SourcePosition, version: str | None) -> _Resolved:
        found = self._find(table_map, place, version)
        definition = None if found is None else found.definition
        known = definition if isinstance(definition, TableDefinition) else None
        table = resolve_columns(table_map, known, server_version=version)
        schema_source: str = table.schema_source
        if schema_source == "catalog" and found is not None:
            schema_source = "catalog_later" if found.later else found.origin
        if schema_source == "positional" and found is not None:
            raise _not_known(table, found)
        if schema_source == "table_map" and known is not None and found is not None and not found.later:
            _compare(table, known)
        table = self.selection.keyed(table)
        ruled, chosen_by = self.selection.columns(table), self.selection.filter(table)
        ruled |= dict.fromkeys(table.of_indexes, ColumnValues.left_out())
        topic = self._topic_of(table.database, table.table)
        former: dict[int, list[Column]] = {}
        if known is not None and found is not None and not found.later:
            former = self.selection.without_rules(table, former_columns(table, known, version))
        table = self.selection.named(table)
        schemas = table_schemas(self._source, table, self._avro, ruled, former)
        return _Resolved(
            table,
            schema_source,
            found,
            topic,
            schemas,
            ruled,
            chosen_by,
            _fingerprint({**schemas.row, "envelope": _envelope_fingerprint()}),
            place,
            ServerVersion.parse(version).mariadb,
        )

    def _look_up(self, wanted: Mapping[Content, Seen]) -> Callable[[], TopicInfos]:
        """Have Kafka asked for the topics that tables have already; give what waits for the answer."""
        if self._accept_topics or self._without_topics:
            return dict
        topics = {self._topic_of(table_map.database, table_map.table) for table_map, _, _ in wanted.values()}
        known = {topic: self._known[topic].id for topic in topics if topic in self._known}
        return self._ensure_topics(known) if known else dict

    def _make_topics(
        self, resolved: Mapping[Content, _Resolved], looked_up: TopicInfos
    ) -> dict[Content, TableTopicInfo | BinlogError]:
        """Have the topics of tables created, and those looked at that exist and were not looked up."""
        refused: dict[Content, TableTopicInfo | BinlogError] = {}
        asked: dict[str, str | None] = {}
        for content, one in resolved.items():
            refusal = None if self._without_topics else self._claim(one) or self._refusal(one.topic)
            if refusal is not None:
                refused[content] = refusal
            elif one.topic not in looked_up:
                known = None if self._accept_topics else self._known.get(one.topic)
                asked[one.topic] = None if known is None else known.id
        infos = {**looked_up, **(self._ensure_topics(asked)() if asked else {})}
        return refused | {
            content: infos[one.topic] for content, one in resolved.items() if content not in refused
        }

    def _claim(self, one: _Resolved) -> TableRefusedError | None:
        """Say why a table cannot have the topic of its name, or nothing."""
        topic, name = one.topic, f"{one.table.database}.{one.table.table}"
        owner = self._owners.get(topic)
        if owner is not None:
            if owner == (one.table.database, one.table.table):
                return None
            return TableRefusedError(
                f"the topic {topic} has the rows of {'.'.join(owner)}: give {name} another one with "
                f"MILLRACE_TOPICS_NAMES, such as {name}={name}_2"
            )
        other = self._metric_names.get(metric_name(topic))
        if other is not None:
            return TableRefusedError(
                f"the topics {topic} and {other} cannot both exist: Kafka's metrics take '.' and '_' for "
                f"the same; give {name} another one with MILLRACE_TOPICS_NAMES, such as {name}={name}_2"
            )
        if len(self._owners) >= self._max_tables:
            return TableRefusedError(
                f"there are {len(self._owners)} table topics and MILLRACE_TOPICS_MAX_TABLES is "
                f"{self._max_tables}, so that {topic} is not created"
            )
        self._owners[topic] = (one.table.database, one.table.table)
        self._metric_names[metric_name(topic)] = topic
        return None

    def _refusal(self, topic: str) -> TableRefusedError | None:
        """Say why a topic took no rows, if that was so."""
        reason = self._refused.get(topic)
        return None if reason is None else TableRefusedError(reason)

    def _schema_ids(
        self, resolved: Mapping[Content, _Resolved]
    ) -> dict[Content, tuple[_Key | BinlogError | None, int | BinlogError]]:
        """Have schemas registered that are not known to be; return keys and ids of values' schemas."""
        found: dict[Content, tuple[_Key | BinlogError | None, int | BinlogError]] = {}
        waiting = dict(resolved)
        while waiting:  # what one topic has several times, one after the other: each follows the one before
            first: dict[str, Content] = {}
            for content, one in waiting.items():
                first.setdefault(one.topic, content)
            found |= self._register_once({content: waiting.pop(content) for content in first.values()})
        return found

    def _register_once(
        self, resolved: Mapping[Content, _Resolved]
    ) -> dict[Content, tuple[_Key | BinlogError | None, int | BinlogError]]:
        asked: list[tuple[str, dict[str, Any]]] = []
        known_ids: list[tuple[str, dict[str, Any], int]] = []
        keys: dict[Content, tuple[WrittenKey, _Key | None] | None] = {}
        found: dict[Content, tuple[_Key | BinlogError | None, int | BinlogError]] = {}
        for content, one in resolved.items():
            key = self._continued(one)
            if isinstance(key, TableIncompatibleError):
                found[content] = key, key
                continue
            keys[content] = key
            if key is not None:
                written, before = key
                if before is not None:
                    known_ids.append((key_subject(one.topic), written.schema, before.id))
                if before is None or before.fingerprint != _fingerprint(written.newest):
                    asked.append((key_subject(one.topic), written.newest))
            known = self._known.get(one.topic)
            if known is not None and known.value_fingerprint == one.value_fingerprint:
                known_ids.append((value_subject(one.topic), one.schemas.envelope, known.value_schema))
            else:
                asked.append((value_subject(one.topic), one.schemas.envelope))
        if known_ids:
            self._confirm(known_ids)
        ids: dict[str, int | BinlogError] = {subject: schema_id for subject, _, schema_id in known_ids}
        for (subject, _), outcome in zip(asked, self._register(asked) if asked else (), strict=True):
            ids[subject] = outcome
        for content, key in keys.items():
            topic = resolved[content].topic
            for subject in (key_subject(topic), value_subject(topic)):
                refused = ids.get(subject)
                if isinstance(refused, AlteredColumnsError):
                    sql_types = partial(self._sql_types, resolved[content])
                    ids[subject] = AlteredColumnsError(subject, refused.columns, refused.effect, sql_types)
            made = None if key is None else self._key_in_use(topic, *key, ids[key_subject(topic)])
            found[content] = made, ids[value_subject(topic)]
        return found

    def _sql_types(self, one: _Resolved, altered: AlteredColumn) -> tuple[str, str]:
        """Return the types in SQL that a column had, by the last definition that fits, and has now."""
        present = next((column for column in one.table.columns if column.name == altered.name), None)
        now = likely_sql_type(altered.now) if present is None else _sql_type(present)
        names, wanted = {altered.name, altered.former}, type_in_words(altered.was)
        for definition in self._catalog.definitions(one.table.database, one.table.table, one.place):
            for column in definition.columns:
                if column.name in names:
                    with suppress(BinlogError):
                        former = column_of(column, mariadb=one.is_mariadb)
                        if type_in_words(codec_of(former).avro_type(self._avro)) == wanted:
                            return _sql_type(former), now
        return likely_sql_type(altered.was), now

    def _key_in_use(
        self, topic: str, written: WrittenKey, before: _Key | None, registered: int | BinlogError
    ) -> _Key | BinlogError:
        """Note the key of a topic after its newest schema was registered."""
        if isinstance(registered, BinlogError):
            return registered
        schema_id = registered if before is None else before.id
        key = self._keys[topic] = _Key(schema_id, _fingerprint(written.newest), written)
        return key

    def _continued(self, one: _Resolved) -> tuple[WrittenKey, _Key | None] | TableIncompatibleError | None:
        """Return how the keys of a table are written from now on, with what they are so far; None without."""
        now = one.schemas.key
        before = None if self._without_topics else self._keys.get(one.topic) or self._noted_key(one.topic)
        if before is not None:
            if now is not None:
                written = before.written.continued(now, one.schemas.key_types)
                if written is not None:
                    return written, before
            was, other = map(key_in_words, (before.written.newest, now))
            table = f"{one.table.database}.{one.table.table}"
            if not self._accepts_any(key_subject(one.topic)):
                return TableIncompatibleError(
                    f"the key of {table} was {was} and is {other} now, and {one.topic} would keep its rows "
                    f"under their former keys for ever (the subject is {key_subject(one.topic)})"
                )
            _LOG.warning(
                "a topic keeps rows under their former keys", table=table, topic=one.topic, was=was, key=other
            )
            self._keys.pop(one.topic, None)
        return None if now is None else (WrittenKey(now, now), None)

    def _noted_key(self, topic: str) -> _Key | None:
        """Return the key of a topic that an earlier row mapper has noted."""
        known = self._known.get(topic)
        if known is None or known.key_schema is None:
            return None
        if known.first_key:
            written = WrittenKey.from_json(known.first_key, known.newest_key)
        else:  # by an earlier version, which wrote each key by its own schema
            schema = self._schema(known.key_schema)
            written = WrittenKey(schema, schema)
        return _Key(known.key_schema, known.key_fingerprint, written)

    def _bound_table(
        self, one: _Resolved, info: TableTopicInfo, key: _Key | None, value_id: int
    ) -> BoundTable:
        table = one.table
        key_id, first_key = (None, None) if key is None else (key.id, key.written.schema)
        partitions = self._partitions(one.topic, info)
        known = TableTopic(
            one.topic,
            info.id,
            table.database,
            table.table,
            key_id,
            "" if key is None else key.fingerprint,
            value_id,
            one.value_fingerprint,
            partitions,
            *(("", "") if key is None else key.written.to_json()),
        )
        _LOG.info(
            "table bound",
            table=f"{table.database}.{table.table}",
            columns=len(table.columns),
            schema_source=one.schema_source,
            topic=one.topic,
        )
        limit, small_limit = info.record_limit, None
        size_of: Callable[[bytes], int] = len
        if self.json_format is not None:
            if key_id is not None and first_key is not None:
                self.json_format.learn(key_id, first_key)
            self.json_format.learn(value_id, one.schemas.envelope)
            limit, small_limit = self.json_format.limits(limit, key_id, value_id)
            size_of = self.json_format.size
        encoder = RowEncoder(
            self._source,
            __version__,
            table,
            self._avro,
            key_id=key_id,
            value_id=value_id,
            record_limit=limit,
            small_limit=small_limit,
            size_of=size_of,
            ruled=one.ruled,
            connector=self._rows.connector,
            tombstones=_tombstones(self._rows.tombstones, info, table),
            key_headers=self._rows.key_headers and bool(table.key_columns),
            in_blocks=self._without_topics,
            key_schema=first_key,
        )
        return BoundTable(
            table,
            encoder,
            one.topic,
            partitions,
            one.schema_source,
            one.found,
            self._avro,
            self._max_unpacked,
            known,
            one.filter,
        )

    def _partitions(self, topic: str, info: TableTopicInfo) -> int:
        """Say over how many partitions of a topic rows are spread: a row stays where it was first."""
        known = self._known.get(topic)
        if known is None or known.id != info.id or known.partitions in (0, info.partitions):
            return info.partitions
        _LOG.warning(
            "partitions that were added to a topic are not used",
            topic=topic,
            partitions=info.partitions,
            used=known.partitions,
            advice="the order of a row's changes would be lost; 'millrace reprocess' writes all rows again",
        )
        return known.partitions

    def truncation(self, database: str, table: str, place: EventMetadata) -> tuple[str, bytes] | None:
        """Return topic and record of a TRUNCATE; None for a table without rows.

        It is written with the schema of the last row, which may be that of another version.
        """
        if not self.selection.selects(database, table):
            return None
        topic = self._topic_of(database, table)
        known = self._known.get(topic)
        if known is None or not known.value_fingerprint or topic in self._refused:
            return None
        if not has_this_envelope(self._schema(known.value_schema)):
            _LOG.warning(
                "a TRUNCATE is in the topic of DDL alone: no row was written by this version", topic=topic
            )
            return None
        begin = origin(__version__, self._rows.connector, self._source)
        return topic, truncation(wire_prefix(known.value_schema), begin, (database, table), place)

    def topic_id(self, topic: str) -> str | None:
        """Return the id of a table's topic; None where it is noted for none."""
        known = self._known.get(topic)
        return None if known is None else known.id

    def written(self, output: Output) -> Output:
        """Return what is sent in place of ``output``: rows in their format."""
        return output if self.json_format is None else self.json_format.written(output)

    def note(self, bound: BoundTable) -> TableTopic | None:
        """Return what to note of a table's topic with its next rows; None where it is noted already."""
        if self._known.get(bound.topic) == bound.known:
            return None
        self._known[bound.topic] = bound.known
        return bound.known


def _tombstones(when: str, info: TableTopicInfo, table: ResolvedTable) -> bool:
    """Return whether a deletion is followed by a tombstone, which needs a key."""
    return bool(table.key_columns) and (when == "always" or (when == "auto" and info.compacted))


def _not_known(table: ResolvedTable, found: Found) -> SchemaMismatchError:
    state = found.definition
    reason = (
        state.reason if isinstance(state, Unknown) else "by the statements of the log there is no such table"
    )
    return SchemaMismatchError(
        f"the definition of {table.database}.{table.table} is not known here: {reason}"
    )


def _compare(table: ResolvedTable, definition: TableDefinition) -> None:
    """Say where the log, which tells the names of columns itself, and the schema history differ."""
    log = [column.name for column in table.columns if column.ordinal not in table.of_indexes]
    history = [column.name for column in definition.columns]
    if log != history:
        _LOG.warning(
            "the schema history differs from the log, which is right",
            table=f"{table.database}.{table.table}",
            columns=len(log),
            columns_of_history=len(history),
            advice="DDL with sql_log_bin=0 is in no log; start the reader again, which reads all definitions",
        )


def _sql_type(column: "Column") -> str:
    return in_sql(column.sql_type or codec_of(column).sql_type())


def _content(table_map: TableMapEvent, version: str | None) -> Content:
    return *table_map.content, version


@cache
def _envelope_fingerprint() -> str:
    """Return that of an envelope without columns: beside a row's it stands for the whole, which is long."""
    return _fingerprint(TableSchemas(None, {"namespace": "", "fields": []}).envelope)


def _fingerprint(schema: dict[str, Any]) -> str:
    try:
        text = json.dumps(schema, sort_keys=True).encode()
    except ValueError as error:
        raise InvalidValueError(f"the table's schema cannot be written as JSON: {error}") from error
    return hashlib.sha256(text).hexdigest()
