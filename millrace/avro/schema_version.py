"""Records of ``{source}.schemas``: what is known of a table from each DDL statement on.

In Avro single-object encoding by the schema ``SchemaVersion``, which says what each field means; a record's
key is ``database.table@epoch:log_file:position`` as text.
"""

from dataclasses import dataclass, replace
from typing import Self

from millrace.avro import single_object
from millrace.binlog.table import DEFINITION_TOO_LARGE, LARGEST_DEFINITION, TableDefinition
from millrace.contract import SourcePosition
from millrace.ddl import MISSING, UNNAMED, State, Unknown


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The state of a table from the statement at a place in the log on.

    One of a table with an empty name is that of its database. Without names it is the note of a gap, with
    :data:`~millrace.ddl.UNNAMED` of a statement that may have made tables that its text does not tell.
    """

    database: str
    table: str
    epoch: int
    log_file: str
    position: int
    state: State

    @property
    def is_gap(self) -> bool:
        """Whether it says that changes are missing: nothing that was known before holds from here on."""
        return not self.database and not self.table

    @property
    def is_unnamed(self) -> bool:
        """Whether it says that there may be tables that were never heard of."""
        return (self.database, self.table) == UNNAMED

    @property
    def place(self) -> SourcePosition:
        """The place from which on it holds."""
        return SourcePosition(self.epoch, self.log_file, self.position)

    @property
    def key(self) -> bytes:
        """Key of the record in the schemas topic."""
        return f"{self.database}.{self.table}@{self.epoch}:{self.log_file}:{self.position}".encode()

    def bounded(self) -> Self:
        """Return it as it is kept: a definition that is too large for a record is not known."""
        if not isinstance(self.state, TableDefinition) or len(self.to_bytes()) <= LARGEST_DEFINITION:
            return self
        return replace(self, state=Unknown(DEFINITION_TOO_LARGE))

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        state = self.state
        return single_object.encode(
            "SchemaVersion",
            {
                "database": self.database,
                "table": self.table,
                "epoch": self.epoch,
                "log_file": self.log_file,
                "position": self.position,
                "unknown": state.reason if isinstance(state, Unknown) else None,
                "definition": state.to_dict() if isinstance(state, TableDefinition) else None,
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("SchemaVersion", data)
        definition, unknown = record.pop("definition"), record.pop("unknown")
        state: State = MISSING if unknown is None else Unknown(unknown)
        if definition is not None:
            state = TableDefinition.from_dict(definition)
        return cls(**record, state=state)
