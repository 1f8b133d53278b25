"""Settings of selection: ``MILLRACE_REPLICATE_…``."""

from collections.abc import Callable
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from millrace.runtime.settings import SettingsGroup
from millrace.selection.tables import TableRules

__all__ = ["ReplicateSettings"]


def parts_of(value: str) -> list[str]:
    """Cut a list at its commas."""
    return [part.strip() for part in value.split(",") if part.strip()]


def _each(check: Callable[[str], bool], expected: str) -> AfterValidator:
    def checked(value: str) -> str:
        for part in parts_of(value):
            if not check(part):
                raise ValueError(f"{part!r} is no {expected}")
        return value

    return AfterValidator(checked)


def _is_table(part: str) -> bool:
    database, dot, table = part.partition(".")
    return bool(database and dot and table)


def _is_rewriting(part: str) -> bool:
    old, arrow, new = part.partition("->")
    return bool(old.strip() and arrow and new.strip())


_TABLE: Final = _each(_is_table, "DATABASE.TABLE")
_NAME: Final = _each(lambda part: "." not in part, "name of a database")


class ReplicateSettings(SettingsGroup):
    """Which tables have row topics: ``MILLRACE_REPLICATE_…``."""

    do_db: Annotated[str, _NAME] = Field(
        "", description="databases whose tables have row topics, separated by commas; all without it"
    )
    ignore_db: Annotated[str, _NAME] = Field(
        "", description="databases whose tables have none, separated by commas; not looked at with a do_db"
    )
    do_table: Annotated[str, _TABLE] = Field(
        "", description="tables that have row topics, as DATABASE.TABLE, separated by commas"
    )
    ignore_table: Annotated[str, _TABLE] = Field(
        "", description="tables that have none, as DATABASE.TABLE, separated by commas"
    )
    wild_do_table: Annotated[str, _TABLE] = Field(
        "",
        description=r"patterns of tables that have row topics, as DATABASE.TABLE with % and _ as in LIKE, "
        "separated by commas",
    )
    wild_ignore_table: Annotated[str, _TABLE] = Field(
        "", description="patterns of tables that have none, in the same form"
    )
    rewrite_db: Annotated[str, _each(_is_rewriting, "OLD->NEW")] = Field(
        "",
        description="other names of databases in row topics, as OLD->NEW, separated by commas; the rules "
        "above take the new name",
    )

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
