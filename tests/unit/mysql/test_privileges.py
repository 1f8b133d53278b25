"""What our user may do, and whether it sees all tables for certain."""

import pytest

from millrace.mysql.connection import Flavour
from millrace.mysql.privileges import privileges, sees_all_tables
from tests.mysql_stub import StubConnection

SELECTED = {"SELECT 1 FROM mysql.db": ()}


def user(*lines, sees=True, flavour=Flavour.MYSQL, roles=None):
    answers = {"SHOW GRANTS": [{"g": line} for line in lines], **(SELECTED if sees else {})}
    variables = {} if roles is None else {"activate_all_roles_on_login": "OFF"}
    if roles is not None:
        answers = {
            "SELECT CURRENT_ROLE": [{"role": roles}],
            "SHOW GRANTS FOR CURRENT_USER() USING `r`@`%`": [
                {"g": "GRANT USAGE ON *.* TO `u`@`%`"},
                {"g": "GRANT SELECT ON *.* TO `u`@`%`"},
            ],
            **answers,
        }
    return StubConnection(variables, answers, flavour=flavour)


@pytest.mark.parametrize(
    ("lines", "sees_all"),
    [
        (["GRANT SELECT, REPLICATION SLAVE ON *.* TO 'u'@'%'"], True),
        (["GRANT ALL PRIVILEGES ON *.* TO 'u'@'%' WITH GRANT OPTION"], True),
        (["GRANT USAGE ON *.* TO `u`@`%`", "GRANT SELECT ON *.* TO `r`"], True),
        (["GRANT REPLICATION SLAVE ON *.* TO 'u'@'%'", "GRANT SELECT ON `shop`.* TO 'u'@'%'"], False),
        (["GRANT USAGE ON *.* TO 'u'@'%'", "GRANT SELECT ON `%`.* TO 'u'@'%'"], False),
        (["GRANT INSERT ON `a, SELECT ON *.* TO `.* TO 'u'@'%'"], False),
        (["GRANT SELECT (`a`) ON `shop`.`t` TO 'u'@'%'"], False),
        (["GRANT SELECT ON *.* TO `u`@`%`", "REVOKE SELECT ON `shop`.* FROM `u`@`%`"], False),
        (["GRANT PROXY ON ''@'' TO 'u'@'%'", "GRANT `r`@`%` TO `u`@`%`"], False),
        ([], False),
    ],
)
def test_who_sees_all_tables(lines, sees_all):
    assert sees_all_tables(user(*lines)) is sees_all


def test_a_privilege_that_the_session_does_not_have_yet():
    assert not sees_all_tables(user("GRANT SELECT ON *.* TO 'u'@'%'", sees=False))
    assert not sees_all_tables(StubConnection())


def test_roles():
    """MySQL lists what they give if asked; MariaDB lists it, and is not asked."""
    assert sees_all_tables(user("GRANT USAGE ON *.* TO `u`@`%`", roles="`r`@`%`"))
    assert not sees_all_tables(user("GRANT USAGE ON *.* TO `u`@`%`", roles="NONE"))
    assert not sees_all_tables(
        user("GRANT USAGE ON *.* TO `u`@`%`", roles="`r`@`%`", flavour=Flavour.MARIADB)
    )


def test_what_privileges_there_are():
    found = privileges(
        user(
            "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `u`@`%`",
            "GRANT SELECT, INSERT ON `d`.* TO `u`@`%`",
        )
    )
    assert found.everywhere == {"REPLICATION SLAVE", "BINLOG MONITOR"}
    assert found.anywhere == found.everywhere | {"SELECT", "INSERT"}
    assert not found.revoked
