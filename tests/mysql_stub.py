"""A connection to a server that is not there: it answers from a table, and refuses what stands in none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from millrace.mysql.connection import Flavour, MysqlAddress, Row
from millrace.mysql.errors import RefusedError

__all__ = ["StubConnection"]


class StubConnection:
    """Has global variables, and rows by the beginnings of the statements that ask for them."""

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        answers: Mapping[str, Iterable[Mapping[str, Any]]] | None = None,
        *,
        flavour: Flavour = Flavour.MYSQL,
        version: str = "8.0.40",
        address: MysqlAddress = MysqlAddress("db"),  # noqa: B008 - it never changes
        verified: bool = False,
        login_method: str = "mysql_native_password",
        may_give_password: bool = False,
    ) -> None:
        self.flavour, self.version, self.address = flavour, version, address
        self.verified, self.login_method = verified, login_method
        self.may_give_password = may_give_password
        self.variables = dict(variables or {})
        self.answers = dict(answers or {})

    def all_variables(self) -> dict[str, str]:
        return self.variables

    def variable(self, name: str) -> str | None:
        return self.variables.get(name)

    def number(self, name: str) -> int | None:
        value = self.variables.get(name)
        return None if value is None else int(value)

    @property
    def account(self) -> str:
        user, _, host = self.row("SELECT CURRENT_USER").text("user").rpartition("@")
        return f"'{user}'@'{host}'"

    def query(self, sql: str, values: Sequence[Any] = (), *, doing: str = "") -> list[Row]:
        for start, rows in self.answers.items():
            if " ".join(sql.split()).startswith(start):
                return [Row(row, f"{self.address}: cannot {doing}") for row in rows]
        raise RefusedError(f"db: we may not {doing}")

    def row(self, sql: str, values: Sequence[Any] = (), *, doing: str = "") -> Row:
        return self.query(sql, values, doing=doing)[0]

    def rows(
        self, sql: str, values: object = (), *, doing: str, **_limits: float
    ) -> Iterator[tuple[Any, ...]]:
        assert not values
        for row in self.query(sql, doing=doing):
            yield tuple(row.values())

    def first_of(self, *statements: str, doing: str) -> list[Row]:
        return self.query(statements[0], doing=doing)
