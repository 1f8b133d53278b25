"""Records of ``{source}.catalog``: table definitions, each with the position where it was read.

In Avro single-object encoding by the schema ``Catalog``, which says what each field means; a record's key is
``database.table`` as text.
"""

from dataclasses import dataclass, replace
from typing import Self

from millrace.avro import single_object
from millrace.binlog.table import DEFINITION_TOO_LARGE, LARGEST_DEFINITION, TableDefinition


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A definition, valid as of a position in the log; ``read_ms`` is in milliseconds.

    One of a table with an empty name is that of its database: the default character set. ``altered_log_file``
    and ``altered_position`` are the place up to which the definition may have been another: that of an
    earlier statement, or of the reading itself where the reader has not looked for such; "" where there is
    none. ``unknown`` says why the definition, of which only the names count then, is not known. ``whole`` is
    the number of entries of a reading that lists all tables and databases; None for one of any other.
    """

    epoch: int
    log_file: str
    position: int
    definition: TableDefinition
    read_ms: int
    gtid_set: str = ""
    lower_case_names: bool = False
    altered_log_file: str = ""
    altered_position: int = 0
    unknown: str | None = None
    whole: int | None = None

    def kept(self) -> tuple[Self, bytes]:
        """Return it as it is kept, and encoded: a definition that is too large for a record is not known."""
        data = self.to_bytes()
        if len(data) <= LARGEST_DEFINITION and (self.definition.columns or not self.definition.table):
            return self, data
        names = replace(self.definition, columns=(), indexes=())
        bounded = replace(self, definition=names, unknown=DEFINITION_TOO_LARGE)
        return bounded, bounded.to_bytes()

    @property
    def key(self) -> bytes:
        """Key of the record in the catalog topic."""
        return f"{self.definition.database}.{self.definition.table}".encode()

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode(
            "Catalog",
            {
                "epoch": self.epoch,
                "log_file": self.log_file,
                "position": self.position,
                "gtid_set": self.gtid_set,
                "read_ms": self.read_ms,
                "lower_case_names": self.lower_case_names,
                "altered_log_file": self.altered_log_file,
                "altered_position": self.altered_position,
                "unknown": self.unknown,
                "whole": self.whole,
                "definition": self.definition.to_dict(),
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("Catalog", data)
        return cls(**{**record, "definition": TableDefinition.from_dict(record["definition"])})
