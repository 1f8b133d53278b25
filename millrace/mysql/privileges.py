"""What our user may do on a server, by SHOW GRANTS."""

import re
from dataclasses import dataclass
from typing import Final

from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.errors import RefusedError

_GRANT: Final = re.compile(r"GRANT ([^`'\"]+?) ON (\S+) TO ")
_EVERYWHERE: Final = "*.*"
ALL: Final = frozenset({"ALL", "ALL PRIVILEGES"})


@dataclass(frozen=True, slots=True)
class Privileges:
    """Names of privileges, in upper case: those ``everywhere``, and those ``anywhere``, which are more.

    ``revoked`` says that those ``everywhere`` were revoked for some databases.
    """

    everywhere: frozenset[str]
    anywhere: frozenset[str]
    revoked: bool = False


def privileges(connection: MysqlConnection) -> Privileges:
    """Return our privileges, those of the roles that are active among them."""
    everywhere: set[str] = set()
    anywhere: set[str] = set()
    lines = _grants(connection)
    for line in lines:
        match = _GRANT.match(line)
        if match is not None:
            names = {name.strip().upper() for name in match[1].split(",")}
            anywhere |= names
            if match[2] == _EVERYWHERE:
                everywhere |= names
    revoked = any(line.startswith("REVOKE ") for line in lines)
    return Privileges(frozenset(everywhere), frozenset(anywhere), revoked)


def sees_all_tables(connection: MysqlConnection) -> bool:
    """Return whether information_schema lists all databases and tables in this session, for certain.

    A session may have fewer privileges than SHOW GRANTS says: it keeps the global ones of its login.
    """
    try:
        found = privileges(connection)
        if found.revoked or not (ALL | {"SELECT"}) & found.everywhere:
            return False
        connection.query("SELECT 1 FROM mysql.db LIMIT 0", doing="look whether we see all tables")
    except RefusedError:
        return False
    return True


def _grants(connection: MysqlConnection) -> list[str]:
    """Return the lines of SHOW GRANTS; MariaDB lists those of an active role by itself."""
    sql = "SHOW GRANTS"
    has_roles = connection.variable("activate_all_roles_on_login") is not None
    if connection.flavour is Flavour.MYSQL and has_roles:
        role = connection.row("SELECT CURRENT_ROLE() AS role", doing="ask for our roles").text("role")
        if role not in {"", "NONE"}:
            sql = f"SHOW GRANTS FOR CURRENT_USER() USING {role}"
    return [row.text(column) for row in connection.query(sql, doing="list our privileges") for column in row]
