"""Which rows of a table are in its row topic: a condition in SQL on the row's columns.

A condition compares columns with literals or with each other: ``= <> < <= > >= <=> IN BETWEEN LIKE IS``,
and ``AND OR NOT``, with NULL as SQL has it; a row is selected where the condition is true, not where it is
unknown. sqlglot parses it by MySQL's grammar; what is made of it are the closures below and nothing else, so
that there are no functions, no sub-queries and nothing that is evaluated as code.

Values are those that the server prints: numbers are compared as numbers, dates and times as such (TIMESTAMP
in UTC), text by its code points, so that ``'a'`` is not ``'A'`` whatever the collation. Of other types it can
only be asked whether they are NULL.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from millrace.binlog.columns import codec_of
from millrace.binlog.columns.declaration import ColumnKind
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.errors import UnsupportedError
from millrace.binlog.names import folded
from millrace.binlog.table import ColumnDefinition, column_of
from millrace.selection.tables import wild

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["ColumnKind", "Condition", "ConditionError", "RowRules", "kind_of", "parse_rules"]

Text = str | bytes | None
"""A value as the server prints it."""

Row = Mapping[str, Text]
"""Values by the lower-case names of their columns."""

_Evaluate = Callable[[Row], Any]
"""From a row to true, false, or None for unknown."""


class ConditionError(ValueError):
    """A condition that is none, or does not fit its table."""


def kind_of(data_type: str) -> ColumnKind:
    """Return the kind of a column by the name of its type in ``information_schema``."""
    try:
        codec = codec_of(column_of(ColumnDefinition(0, "", data_type, members=()), mariadb=False))
    except UnsupportedError:
        return ColumnKind.OTHER
    of_characters = codec.has_charset and not SqlType.parse(data_type).holds_bytes
    return ColumnKind.TEXT if of_characters else codec.kind


_MOMENT: Final = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)(?:[ T](\d\d?):(\d\d?)(?::(\d\d?)(?:\.(\d{1,6}))?)?)?", re.ASCII
)
_TIME: Final = re.compile(r"(-?)(\d{1,3}):(\d\d?)(?::(\d\d?)(?:\.(\d{1,6}))?)?", re.ASCII)


def _moment(text: str) -> tuple[int, ...]:
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ConditionError(f"{text!r} is not a date: expected 'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM:SS'")
    *parts, fraction = found.groups()
    return *(int(part or 0) for part in parts), int((fraction or "").ljust(6, "0"))


def _time(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ConditionError(f"{text!r} is not a time: expected 'HH:MM:SS'")
    sign, hours, minutes, seconds, fraction = found.groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds or 0)
    micros = whole * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -micros if sign else micros


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ConditionError(f"{text!r} is not a number") from None


def _string(text: Text) -> Text:
    return text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text


_READ: Final[Mapping[ColumnKind, Callable[[Any], Any]]] = {
    ColumnKind.NUMBER: _decimal,
    ColumnKind.REAL: float,
    ColumnKind.TEXT: _string,
    ColumnKind.MOMENT: _moment,
    ColumnKind.TIME: _time,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition, read but not yet bound to a table; ``columns`` are those it is about, in lower case."""

    text: str
    columns: frozenset[str]
    _tree: "exp.Expression"

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read a condition; raises :class:`ConditionError`."""
        import sqlglot  # noqa: PLC0415 - large, and needed by few
        from sqlglot import errors, exp  # noqa: PLC0415 - likewise

        try:
            tree = cast("exp.Expression", sqlglot.parse_one(text, read="mysql"))
        except errors.SqlglotError:
            raise ConditionError(f"{text!r} is not a condition in SQL") from None
        names = frozenset(folded(column.name) for column in tree.find_all(exp.Column))
        # What is wrong with it whatever its columns are comes to light at once.
        _Binding(dict.fromkeys(names, None)).bind(tree)
        return cls(text, names, tree)

    def bind(self, kinds: Mapping[str, ColumnKind]) -> Callable[[Row], bool]:
        """Bind it to a table's columns, by lower-case name; raises :class:`ConditionError`."""
        missing = sorted(self.columns - kinds.keys())
        if missing:
            raise ConditionError(f"there is no column {missing[0]}")
        evaluate = _Binding(kinds).bind(self._tree)
        return lambda row: evaluate(row) is True


class _Binding:
    """Makes closures of a condition; ``kinds`` are None where they are not known yet."""

    def __init__(self, kinds: Mapping[str, ColumnKind | None]) -> None:
        from sqlglot import exp  # noqa: PLC0415 - see above

        self._exp = exp
        self._kinds = kinds
        self._comparisons: dict[type[exp.Expression], Callable[[Any, Any], bool]] = {
            exp.EQ: operator.eq,
            exp.NEQ: operator.ne,
            exp.LT: operator.lt,
            exp.LTE: operator.le,
            exp.GT: operator.gt,
            exp.GTE: operator.ge,
        }

    def bind(self, node: "exp.Expression") -> _Evaluate:
        """Make the closure of a condition."""
        exp = self._exp
        negated = bool(node.args.get("negate"))
        given = {name for name, value in node.args.items() if value not in (None, False, [])} - {"negate"}
        made: _Evaluate | None = None
        if isinstance(node, exp.Paren) and given == {"this"}:
            made = self.bind(node.this)
        elif isinstance(node, exp.Not) and given == {"this"}:
            made = _not(self.bind(node.this))
        elif isinstance(node, exp.And | exp.Or) and given == {"this", "expression"}:
            both = self.bind(node.this), self.bind(node.expression)
            made = partial(_connected, isinstance(node, exp.Or), both)
        elif type(node) in self._comparisons and given == {"this", "expression"}:
            made = self._compared(self._comparisons[type(node)], node.this, node.expression)
        elif isinstance(node, exp.NullSafeEQ) and given == {"this", "expression"}:
            made = self._null_safe(node.this, node.expression)
        elif isinstance(node, exp.Is) and given == {"this", "expression"}:
            made = self._is(node)
        elif isinstance(node, exp.In) and given == {"this", "expressions"}:
            made = self._in(node.this, node.expressions)
        elif isinstance(node, exp.Between) and given == {"this", "low", "high"}:
            ends = (
                self._compared(operator.ge, node.this, node.args["low"]),
                self._compared(operator.le, node.this, node.args["high"]),
            )
            made = partial(_connected, False, ends)
        elif isinstance(node, exp.Like) and given == {"this", "expression"}:
            made = self._like(node)
        elif isinstance(node, exp.Boolean):
            value = bool(node.this)
            made = lambda _: value  # noqa: E731 - a constant
        if made is None:
            raise self._refused(node)
        return _not(made) if negated else made

    def _refused(self, node: "exp.Expression") -> ConditionError:
        return ConditionError(
            f"{node.sql('mysql')!r} is not understood: expected comparisons of columns with literals "
            "(= <> < <= > >= <=> IN BETWEEN LIKE IS NULL), AND, OR and NOT"
        )

    # -- operands -------------------------------------------------------------------------------------

    def _column(self, node: "exp.Expression") -> tuple[str, ColumnKind | None] | None:
        """Return name and kind of a column; None where it is something else."""
        if not isinstance(node, self._exp.Column):
            return None
        if node.args.get("table") is not None:
            raise ConditionError(f"{node.sql('mysql')!r}: a column is named without its table")
        name = folded(node.name)
        return name, self._kinds.get(name)

    def _literal(self, node: "exp.Expression") -> tuple[str, bool]:
        """Return a literal, and whether it is a string."""
        exp = self._exp
        if isinstance(node, exp.Literal):
            return node.name, node.is_string
        if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
            return f"-{node.this.name}", False
        if isinstance(node, exp.Boolean):
            return str(int(node.this)), False
        raise self._refused(node)

    def _operands(self, *nodes: "exp.Expression") -> list[_Evaluate]:
        """Make closures that give comparable values of columns and literals, None for NULL."""
        columns = [self._column(node) for node in nodes]
        kinds = {column[1] for column in columns if column is not None}
        if not any(columns):
            raise ConditionError(f"{nodes[0].sql('mysql')!r} is compared, and is not a column")
        if kinds <= {ColumnKind.NUMBER, ColumnKind.REAL} and len(kinds) == 2:
            kinds = {ColumnKind.REAL}
        if None in kinds:
            kind = None
        elif len(kinds) == 1:
            (kind,) = kinds
        else:
            raise ConditionError("columns of different kinds are compared")
        if kind is ColumnKind.OTHER:
            raise ConditionError(f"{nodes[0].sql('mysql')!r} has a type that cannot be compared")
        made: list[_Evaluate] = []
        for node, column in zip(nodes, columns, strict=True):
            if column is not None:
                made.append(partial(_value, column[0], _READ[kind] if kind else _string))
            elif isinstance(node, self._exp.Null):
                made.append(lambda _: None)
            else:
                made.append(partial(_constant, self._constant(kind, *self._literal(node))))
        return made

    def _constant(self, kind: ColumnKind | None, text: str, is_string: bool) -> Any:
        if kind is None:
            return text
        if not is_string and kind not in (ColumnKind.NUMBER, ColumnKind.REAL):
            raise ConditionError(f"a {kind.value} is compared with the number {text}: write it as a string")
        try:
            return _READ[kind](text)
        except ValueError as error:
            raise ConditionError(str(error)) from None

    # -- operators ------------------------------------------------------------------------------------

    def _compared(
        self, compare: Callable[[Any, Any], bool], left: "exp.Expression", right: "exp.Expression"
    ) -> _Evaluate:
        one, other = self._operands(left, right)

        def evaluate(row: Row) -> bool | None:
            first, second = one(row), other(row)
            return None if first is None or second is None else compare(first, second)

        return evaluate

    def _null_safe(self, left: "exp.Expression", right: "exp.Expression") -> _Evaluate:
        if isinstance(right, self._exp.Null):
            return self._is_null(left)
        one, other = self._operands(left, right)
        return lambda row: one(row) == other(row)

    def _is(self, node: "exp.Is") -> _Evaluate:
        if isinstance(node.expression, self._exp.Null):
            return self._is_null(node.this)
        raise self._refused(node)

    def _is_null(self, node: "exp.Expression") -> _Evaluate:
        column = self._column(node)
        if column is None:
            raise self._refused(node)
        name = column[0]
        return lambda row: row[name] is None

    def _in(self, left: "exp.Expression", choices: Sequence["exp.Expression"]) -> _Evaluate:
        one, *others = self._operands(left, *choices)

        def evaluate(row: Row) -> bool | None:
            value = one(row)
            if value is None:
                return None
            values = [other(row) for other in others]
            return value in values or (None if None in values else False)

        return evaluate

    def _like(self, node: "exp.Like") -> _Evaluate:
        column = self._column(node.this)
        if column is None or not isinstance(node.expression, self._exp.Literal):
            raise self._refused(node)
        if column[1] not in (None, ColumnKind.TEXT):
            raise ConditionError(f"{column[0]!r} is not text, and LIKE is for text")
        name, pattern = column[0], str(node.expression.name)

        def evaluate(row: Row) -> bool | None:
            value = _string(row[name])
            return None if value is None else wild(pattern, str(value))

        return evaluate


def _value(name: str, read: Callable[[Any], Any], row: Row) -> Any:
    value = row[name]
    return None if value is None else read(value)


def _constant(value: Any, _: Row) -> Any:
    return value


def _not(inner: _Evaluate) -> _Evaluate:
    def evaluate(row: Row) -> bool | None:
        value: bool | None = inner(row)
        return None if value is None else not value

    return evaluate


def _connected(is_or: bool, both: tuple[_Evaluate, _Evaluate], row: Row) -> bool | None:
    """Evaluate AND, or OR: one side may decide alone, else what is unknown stays so."""
    first: bool | None = both[0](row)
    if first is is_or:
        return is_or
    second: bool | None = both[1](row)
    if second is is_or:
        return is_or
    return None if first is None or second is None else not is_or


# -- rules ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowRules:
    """Conditions by patterns of tables; all that match a table must be true of its rows."""

    conditions: tuple[tuple[str, Condition], ...] = ()

    def of(self, database: str, table: str) -> list[Condition]:
        """Return the conditions of a table."""
        name = f"{database}.{table}"
        return [condition for pattern, condition in self.conditions if wild(pattern, name)]


def parse_rules(text: str) -> RowRules:
    """Read ``DATABASE.TABLE: condition; …``; raises :class:`ConditionError`."""
    rules = []
    for part in _split(text):
        pattern, colon, condition = part.partition(":")
        database, _, table = pattern.strip().partition(".")
        if not (colon and database and table):
            raise ConditionError(f"{part!r} is not DATABASE.TABLE: CONDITION")
        rules.append((pattern.strip(), Condition.parse(condition.strip())))
    return RowRules(tuple(rules))


_PIECES: Final = re.compile(r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|;|[^;'"`]+|.""", re.DOTALL)


def _split(text: str) -> Iterable[str]:
    """Cut rules at semicolons, but not within quotes."""
    parts = [""]
    for piece in _PIECES.findall(text):
        if piece == ";":
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]
