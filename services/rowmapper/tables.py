"""The tables of a source: whose columns they are, how their rows are written, and which are set aside.

A table is bound when its first row comes, and again whenever its table map changes: its columns get their
names (from the table map, else the catalogue, else their place), its schemas are registered, its topic is
created. What is bound is kept by the content of the table map, so that later statements find it at once.

The reader writes the catalogue when it connects, which the events do not show. So it is looked at again,
where names come from it, in each Kafka transaction of the row mapper, behind each format description and
behind each statement that defines a table. A table map shows types alone: where a statement changes names and
no type, those that were read before it hold until the reader reads them anew.

A table whose definition and table map cannot both be true is set aside: from then on its rows go to the dead
letter topic, behind the first of them, while all other tables go on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import millrace
from millrace.avro.catalog import CatalogEntry
from millrace.avro.registry import SchemaRegistry, key_subject, value_subject
from millrace.avro.state import QuarantinedTable
from millrace.avro.tables import EventWriter, RowEncoder, table_schemas
from millrace.binlog.columns import AvroOptions
from millrace.binlog.events.rows import PartialUpdateRowsEvent, RowsEvent, RowsOperation, TableMapEvent
from millrace.binlog.rows import RowImages
from millrace.binlog.table import ResolvedTable, SchemaMismatchError, TableDefinition, resolve_columns
from millrace.contract import Topics
from millrace.kafka.topics import TopicInfo
from millrace.runtime.logging import get_logger
from services.rowmapper.catalog import Catalog, Found, Position
from services.rowmapper.incoming import Incoming
from services.rowmapper.locate import locate_value
from services.rowmapper.settings import RowMapperSettings

if TYPE_CHECKING:
    from millrace.kernel.rows import RowsKernel

__all__ = ["BoundTable", "Tables"]

_LOG = get_logger(__name__)
_MAX_IMAGES: Final = 256
"""Combinations of present columns that are kept per table: minimal images may have very many."""

Content = tuple[Any, ...]


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
    name: tuple[str, str] = field(init=False)
    _images: "dict[tuple[type, bytes, bytes], tuple[RowImages, RowsKernel | None]]" = field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        self.name = self.table.database, self.table.table

    def write(self, event: RowsEvent, writer: EventWriter) -> None:
        """Write the rows of an event; raises BinlogError where its images are malformed or lack the key."""
        kind = (type(event), event.columns_before_image, event.columns_after_image)
        bound = self._images.get(kind)
        if bound is None:
            if len(self._images) >= _MAX_IMAGES:
                self._images.clear()
            partial = isinstance(event, PartialUpdateRowsEvent)
            bound = self._images[kind] = self._bind(event, partial=partial)
        writer.write_bytes(event.operation, event.rows, *bound)

    def write_batch(self, event: RowsEvent, writer: EventWriter) -> None:
        """Write some rows of an event: as :meth:`write` does, by the reference alone."""
        images, _ = self._bind(event, partial=False)
        writer.write(event.operation, images.avro(event.rows))

    def _bind(self, event: RowsEvent, *, partial: bool) -> "tuple[RowImages, RowsKernel | None]":
        before = None if event.operation is RowsOperation.WRITE else event.columns_before_image
        after = None if event.operation is RowsOperation.DELETE else event.columns_after_image
        images = RowImages(self.table.columns, before, after, options=self.options, partial_json=partial)
        return images, None if partial else self.encoder.kernel(before, after)

    def locate(self, event: RowsEvent, row: int, side: int, ordinal: int) -> tuple[int, int]:
        """Find the bytes of a value in the rows of an event; see :func:`locate_value`."""
        return locate_value(self.table.columns, event, row, side, ordinal)


class Tables:
    """Binds table maps, and remembers which tables are set aside.

    ``ensure_topic`` creates a topic unless it exists; ``read_catalog`` gives the definitions that have come
    since it was called last; ``before_waiting`` is called before either, or the registry, may take its time.
    ``catalog_grew`` says at once whether there may be any.
    ``server_version`` is that of the last format description, None before the first. With ``trust_later`` a
    definition that contradicts the log gives way to the first one read later that agrees with it.
    """

    def __init__(
        self,
        settings: RowMapperSettings,
        registry: SchemaRegistry,
        *,
        ensure_topic: Callable[[str], TopicInfo],
        read_catalog: Callable[[], Iterable[CatalogEntry]],
        catalog_grew: Callable[[], bool],
        before_waiting: Callable[[], None],
        quarantined: Iterable[QuarantinedTable] = (),
        server_version: str | None = None,
    ) -> None:
        self.server_version = server_version
        self.trust_later = False
        self._source = settings.source
        self._avro = settings.rows.avro
        self._topics = Topics(settings.source)
        self._registry = registry
        self._ensure_topic = ensure_topic
        self._read_catalog = read_catalog
        self._catalog_grew = catalog_grew
        self._look_due = False
        self._before_waiting = before_waiting
        self._catalog = Catalog()
        self._bound: dict[Content, BoundTable] = {}
        self._set_aside = {(table.database, table.table): table for table in quarantined}

    @property
    def quarantined(self) -> tuple[QuarantinedTable, ...]:
        """All tables that are set aside."""
        return tuple(self._set_aside.values())

    def set_aside(self, table: QuarantinedTable) -> None:
        """Set a table aside, if it is not already."""
        if self._set_aside.setdefault((table.database, table.table), table) is table:
            _LOG.error(
                "table set aside: its rows go to the dead letter topic from here on",
                table=table.name,
                key=table.key,
                reason=table.error,
            )

    def is_set_aside(
        self, database: str, table: str, transaction: int, offset: int
    ) -> QuarantinedTable | None:
        """Say whether a row of a table waits: the event at ``offset``, in the transaction published now."""
        entry = self._set_aside.get((database, table)) if self._set_aside else None
        if entry is None or (transaction, offset) < (entry.transaction, entry.offset):
            return None
        return entry

    def is_transactional(self, database: str, table: str, place: Position) -> bool:
        """Say whether a rollback undoes the rows of a table; so it is unless its engine is known not to."""
        self._look()
        found = self._catalog.find(database, table, place)
        if found is None:
            self.refresh()
            found = self._catalog.find(database, table, place)
        return found is None or found.definition.transactional is not False

    def update(self, table: QuarantinedTable) -> None:
        """Note how far a table that is set aside was given back."""
        self._set_aside[table.database, table.table] = table

    def give_back(self, database: str, table: str) -> None:
        """Let the rows of a table be mapped again from here on."""
        del self._set_aside[database, table]

    def bind(self, table_map: TableMapEvent, rows: Incoming, server_version: str | None = None) -> BoundTable:
        """Return the table of the table map of ``rows``; raises BinlogError where its columns cannot be told.

        ``server_version`` is that of the last format description unless it is given.
        """
        version = server_version or self.server_version
        content = (
            table_map.database,
            table_map.table,
            table_map.column_types,
            table_map.column_metadata,
            table_map.null_bits,
            table_map.optional_metadata,
            version,
        )
        bound = self._bound.get(content)
        if bound is not None:
            if bound.table.schema_source == "table_map":
                return bound
            self._look()
            if bound.found == self._find(table_map, rows.position, version):
                return bound
        self._before_waiting()
        self.refresh()
        bound = self._bound[content] = self._bind(table_map, rows.position, version)
        return bound

    def look_again(self) -> None:
        """Take note that the catalogue may have grown."""
        self._look_due = True

    def altered(self, database: str, table: str, place: Position) -> None:
        """Take note of a statement at ``place`` that may have changed the names of a table's columns."""
        self._look_due = True
        if any(
            bound.table.schema_source == "catalog" and bound.name == (database, table)
            for bound in self._bound.values()
        ):
            self._look()
            if not any(found.later for found in self._catalog.since(database, table, place)):
                _LOG.warning(
                    "columns may have other names from here on: those known were read before a statement",
                    table=f"{database}.{table}",
                    log_file=place.log_file,
                    position=place.position,
                    advice="start the reader again, which reads them anew; or set binlog_row_metadata=FULL",
                )

    def _look(self) -> None:
        """Take in what the catalogue topic has by now, where it may have grown."""
        if self._look_due:
            self._look_due = False
            if self._catalog_grew():
                self._before_waiting()
                self.refresh()

    def refresh(self) -> None:
        """Take in what the catalogue topic has by now."""
        for entry in self._read_catalog():
            self._catalog.add(entry)

    def _find(self, table_map: TableMapEvent, place: Position, version: str | None) -> Found | None:
        """Give the definition that holds; with ``trust_later`` the first one from there on that agrees."""
        if not self.trust_later:
            return self._catalog.find(table_map.database, table_map.table, place)
        candidates = self._catalog.since(table_map.database, table_map.table, place)
        for found in candidates:
            try:
                resolve_columns(table_map, found.definition, server_version=version)
            except SchemaMismatchError:
                continue
            return found
        return candidates[0] if candidates else None

    def _bind(self, table_map: TableMapEvent, place: Position, version: str | None) -> BoundTable:
        found = self._find(table_map, place, version)
        definition: TableDefinition | None = None if found is None else found.definition
        table = resolve_columns(table_map, definition, server_version=version)
        schema_source: str = table.schema_source
        if schema_source == "catalog" and found is not None and found.later:
            schema_source = "catalog_later"
        topic = self._topics.table(table.database, table.table)
        info = self._ensure_topic(topic)
        schemas = table_schemas(self._source, table, self._avro)
        key_id = None
        if schemas.key is not None:
            key_id = self._registry.register(key_subject(topic), schemas.key, always=True)
        value_id = self._registry.register(value_subject(topic), schemas.envelope, always=True)
        _LOG.info(
            "table bound",
            table=f"{table.database}.{table.table}",
            columns=len(table.columns),
            schema_source=schema_source,
            topic=topic,
        )
        encoder = RowEncoder(
            self._source,
            millrace.__version__,
            table,
            self._avro,
            key_id=key_id,
            value_id=value_id,
            record_limit=info.record_limit,
        )
        return BoundTable(table, encoder, topic, info.partitions, schema_source, found, self._avro)
