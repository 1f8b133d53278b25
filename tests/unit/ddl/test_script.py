"""Definitions from a file of SQL."""

from millrace.binlog.table import TableDefinition
from millrace.ddl import Unknown, definitions

DUMP = """
-- MySQL dump; not a statement
/*!40101 SET NAMES utf8mb4 */;
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `shop` /*!40100 DEFAULT CHARACTER SET latin1 */;
USE `shop`;
DROP TABLE IF EXISTS `t`;
CREATE TABLE `t` (
  `id` int(10) unsigned NOT NULL,
  `e` enum('a;b','c''d') DEFAULT NULL COMMENT 'one; -- two',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB;
CREATE TABLE other.u (v varchar(3))
"""


def test_a_dump() -> None:
    found = definitions(DUMP)
    assert found.keys() == {("shop", ""), ("shop", "t"), ("other", "u")}
    table = found["shop", "t"]
    assert isinstance(table, TableDefinition)
    assert [(column.name, column.members, column.charset) for column in table.columns] == [
        ("id", None, None),
        ("e", ("a;b", "c'd"), "latin1"),
    ]
    assert table.key == ("id",)
    assert isinstance(found["other", "u"], Unknown)


def test_no_definitions() -> None:
    assert definitions("") == definitions("SELECT 1; -- CREATE TABLE t (a INT);") == {}
