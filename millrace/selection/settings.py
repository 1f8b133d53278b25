"""Settings of selection: ``MILLRACE_REPLICATE_…``, ``MILLRACE_COLUMNS_…``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, Field, SecretStr, model_validator

from millrace.runtime.settings import SettingsGroup, parts_of, refuse_idle, refuse_repeated
from millrace.selection.columns import ColumnRules, column_pattern
from millrace.selection.rows import parse_rules
from millrace.selection.tables import TableRules

__all__ = [
    "ColumnsSettings",
    "ReplicateSettings",
    "RowConditions",
    "RowKeys",
    "ServerRules",
    "TablePatterns",
    "keys_of",
    "parts_of",
]

_LEAST_SALT: Final = 16


def _each(check: Callable[[str], bool], expected: str, sides: str = "") -> AfterValidator:
    """Check each part of a list; where ``sides`` is between two, also that no left side comes twice."""

    def checked(value: str) -> str:
        for part in parts_of(value):
            if not check(part):
                raise ValueError(f"{part!r} is not {expected}")
        if sides:
            refuse_repeated([part.partition(sides)[0].strip() for part in parts_of(value)])
        return value

    return AfterValidator(checked)


def _is_table(part: str) -> bool:
    database, dot, table = part.partition(".")
    return bool(database and dot and table)


def _is_rewriting(part: str) -> bool:
    old, arrow, new = part.partition("->")
    return bool(old.strip() and arrow and new.strip())


def _is_operation(part: str) -> bool:
    pattern, equals, letters = part.partition("=")
    return (
        _is_table(pattern.strip())
        and bool(equals)
        and bool(letters.strip())
        and set(letters.strip()) <= set("cud")
    )


_NUMBER: Final = _each(lambda part: part.isascii() and part.isdigit(), "a server_id")
_TABLE: Final = _each(_is_table, "DATABASE.TABLE")
_NAME: Final = _each(lambda part: "." not in part, "a database name")


@dataclass(frozen=True, slots=True)
class ServerRules:
    """Whose changes are published: of servers in ``do``, where there are any, and never in ``ignore``."""

    do: frozenset[int]
    ignore: frozenset[int]

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return bool(self.do or self.ignore)

    def selects(self, server_id: int) -> bool:
        """Say whether changes that were made on a server are published."""
        return server_id not in self.ignore and (not self.do or server_id in self.do)


class ReplicateSettings(SettingsGroup):
    """Which tables have row topics: ``MILLRACE_REPLICATE_…``."""

    do_db: Annotated[str, _NAME] = Field(
        "",
        description="databases that have row topics, DATABASE,…; without it all but the server's own "
        "(mysql, sys)",
    )
    ignore_db: Annotated[str, _NAME] = Field(
        "", description="databases that have none, DATABASE,…; not with a do_db"
    )
    do_table: Annotated[str, _TABLE] = Field("", description="tables that have row topics, DATABASE.TABLE,…")
    ignore_table: Annotated[str, _TABLE] = Field("", description="tables that have none, DATABASE.TABLE,…")
    wild_do_table: Annotated[str, _TABLE] = Field(
        "",
        description="tables that have row topics, DATABASE.TABLE,… with % and _",
    )
    wild_ignore_table: Annotated[str, _TABLE] = Field(
        "", description="tables that have none, DATABASE.TABLE,… with % and _"
    )
    rewrite_db: Annotated[str, _each(_is_rewriting, "OLD->NEW", "->")] = Field(
        "",
        description="other names of databases in row topics, OLD->NEW,…; the rules above take the new name",
    )

    do_server_ids: Annotated[str, _NUMBER] = Field(
        "",
        description="servers of origin whose changes are in row topics, SERVER_ID,…; all without it",
    )
    ignore_server_ids: Annotated[str, _NUMBER] = Field(
        "", description="servers of origin whose changes are not, SERVER_ID,…; not with do_server_ids"
    )
    ignore_operations: Annotated[str, _each(_is_operation, "DATABASE.TABLE=LETTERS of c, u, d", "=")] = Field(
        "",
        description="inserts (c), updates (u) and deletes (d) that are not in row topics, "
        "DATABASE.TABLE=LETTERS,… with % and _",
    )

    @model_validator(mode="after")
    def _can_act(self) -> "ReplicateSettings":
        if self.do_db:
            refuse_idle("replicate", self, "ignore_db", because="MILLRACE_REPLICATE_DO_DB decides alone")
        if self.do_server_ids:
            because = "MILLRACE_REPLICATE_DO_SERVER_IDS decides alone"
            refuse_idle("replicate", self, "ignore_server_ids", because=because)
        return self

    @property
    def servers(self) -> "ServerRules":
        """Whose changes are published."""
        return ServerRules(
            frozenset(map(int, parts_of(self.do_server_ids))),
            frozenset(map(int, parts_of(self.ignore_server_ids))),
        )

    @property
    def ignored_operations(self) -> dict[str, str]:
        """Letters of operations by pattern of tables."""
        return _pairs(self.ignore_operations)

    @property
    def tables(self) -> TableRules:
        """The rules as they are evaluated."""
        return TableRules(
            frozenset(parts_of(self.do_db)),
            frozenset(parts_of(self.ignore_db)),
            frozenset(parts_of(self.do_table)),
            frozenset(parts_of(self.ignore_table)),
            tuple(parts_of(self.wild_do_table)),
            tuple(parts_of(self.wild_ignore_table)),
            {
                old.strip(): new.strip()
                for old, _, new in (part.partition("->") for part in parts_of(self.rewrite_db))
            },
        )


def _is_column(part: str) -> bool:
    try:
        column_pattern(part)
    except ValueError:
        return False
    return True


def _is_mask(part: str) -> bool:
    pattern, equals, _ = part.partition("=")
    return bool(equals) and _is_column(pattern.strip())


def _is_length(part: str) -> bool:
    pattern, _, length = part.partition("=")
    return _is_column(pattern.strip()) and length.strip().isascii() and length.strip().isdigit()


def _pairs(value: str) -> dict[str, str]:
    return {
        pattern.strip(): other.strip()
        for pattern, _, other in (part.partition("=") for part in parts_of(value))
    }


def _conditions(value: str) -> str:
    parse_rules(value)
    return value


RowConditions = Annotated[str, AfterValidator(_conditions)]
"""Conditions as :func:`millrace.selection.rows.parse_rules` reads them."""


def _is_key(part: str) -> bool:
    pattern, equals, _ = part.partition("=")
    return _is_table(pattern.strip()) and bool(equals)


RowKeys = Annotated[str, _each(_is_key, "DATABASE.TABLE=COLUMN", "=")]
"""Columns of keys as :func:`keys_of` reads them."""


def keys_of(value: str) -> dict[str, list[str]]:
    """Return the names of the columns of keys by pattern of tables."""
    return {
        pattern: [name.strip() for name in names.split("+") if name.strip()]
        for pattern, names in _pairs(value).items()
    }


_COLUMN: Final = _each(_is_column, "DATABASE.TABLE.COLUMN")


TablePatterns = Annotated[str, _TABLE]
"""Patterns of tables, as DATABASE.TABLE, separated by commas."""


class ColumnsSettings(SettingsGroup):
    """What is done to columns in row topics: ``MILLRACE_COLUMNS_…``."""

    drop: Annotated[str, _COLUMN] = Field(
        "",
        description="columns that row topics lack, DATABASE.TABLE.COLUMN,… with % and _",
    )
    mask: Annotated[str, _each(_is_mask, "DATABASE.TABLE.COLUMN=TEXT", "=")] = Field(
        "",
        description="columns with one text in all rows, DATABASE.TABLE.COLUMN=TEXT,…",
    )
    hash: Annotated[str, _COLUMN] = Field(
        "",
        description="columns hashed by HMAC-SHA-256, DATABASE.TABLE.COLUMN,…",
    )
    hash_salt: SecretStr | None = Field(
        None, min_length=_LEAST_SALT, description="key of these hashes, 16 characters or more"
    )
    truncate: Annotated[str, _each(_is_length, "DATABASE.TABLE.COLUMN=LENGTH", "=")] = Field(
        "",
        description="columns that are cut, DATABASE.TABLE.COLUMN=LENGTH,… in characters (binary ones in "
        "bytes)",
    )

    @model_validator(mode="after")
    def _can_act(self) -> "ColumnsSettings":
        if self.hash and self.hash_salt is None:
            raise ValueError("MILLRACE_COLUMNS_HASH_SALT is missing: MILLRACE_COLUMNS_HASH needs it")
        if not self.hash:
            because = "MILLRACE_COLUMNS_HASH names no column"
            refuse_idle("columns", self, "hash_salt", because=because)
        try:
            refuse_repeated([each.lower() for each in self.rules.patterns()])
        except ValueError as error:
            raise ValueError(f"MILLRACE_COLUMNS_… is wrong: {error}") from None
        return self

    @property
    def rules(self) -> ColumnRules:
        """The rules as they are evaluated."""
        return ColumnRules(
            tuple(parts_of(self.drop)),
            _pairs(self.mask),
            tuple(parts_of(self.hash)),
            {pattern: int(length) for pattern, length in _pairs(self.truncate).items()},
            b"" if self.hash_salt is None else self.hash_salt.get_secret_value().encode(),
        )
