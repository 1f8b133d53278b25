# ruff: noqa: E501 - statements as people write them, each on a line
"""DDL statements as people write them, in an order in which a server runs them, and on which servers.

They run in the databases ``ddl`` and ``ddl_other``. A session's settings come as ``SET``.
"""

from typing import Final

MYSQL: Final = ("mysql",)
MARIADB: Final = ("mariadb",)

_BOTH_PARTS: Final = (
    # -- CREATE TABLE: every type
    """CREATE TABLE numbers (
         a TINYINT, b TINYINT UNSIGNED, c SMALLINT(4) ZEROFILL, d MEDIUMINT UNSIGNED NOT NULL, e INT, f INTEGER UNSIGNED,
         g BIGINT, h BIGINT(20) UNSIGNED, i BOOL, j BOOLEAN NOT NULL DEFAULT TRUE, k INT1, l INT2, m INT3, n INT4, o INT8 UNSIGNED,
         p MIDDLEINT, q TINYINT(1) UNSIGNED, r INT(5) UNSIGNED ZEROFILL
       )""",
    """CREATE TABLE reals (
         a FLOAT, b FLOAT(10), c FLOAT(30), d FLOAT(7,3) UNSIGNED, e DOUBLE, f DOUBLE PRECISION, g REAL, h DOUBLE(12,4),
         i DECIMAL, j DEC(5), k NUMERIC(12,3) UNSIGNED, l FIXED(65,30), m FLOAT4, n FLOAT8 ZEROFILL
       )""",
    """CREATE TABLE texts (
         a CHAR, b CHAR(10), c CHARACTER(20) NOT NULL, d VARCHAR(30), e CHAR VARYING(40), f CHARACTER VARYING(50),
         g TINYTEXT, h TEXT, i MEDIUMTEXT, j LONGTEXT, k TEXT(100), l TEXT(20000), m LONG, n LONG VARCHAR
       ) CHARSET latin1""",
    """CREATE TABLE nationals (
         a NCHAR(5), b NATIONAL CHAR(6), c NVARCHAR(7), d NATIONAL VARCHAR(8), e NCHAR VARCHAR(9), f NATIONAL CHARACTER VARYING(10)
       )""",
    """CREATE TABLE bytes (
         a BINARY, b BINARY(10), c VARBINARY(20), d TINYBLOB, e BLOB, f MEDIUMBLOB, g LONGBLOB, h BLOB(10), i BLOB(70000),
         j LONG VARBINARY, k CHAR(4) BYTE, l BIT, m BIT(17), n CHAR(5) CHARACTER SET binary, o TEXT CHARACTER SET binary,
         p VARCHAR(9) CHARSET binary, q VARCHAR(8) BYTE NOT NULL, r TEXT(300) BYTE
       )""",
    """CREATE TABLE times (
         a DATE, b TIME, c TIME(3), d DATETIME, e DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
         f TIMESTAMP NULL, g TIMESTAMP(2) NOT NULL DEFAULT NOW(2), h YEAR, i YEAR(4)
       )""",
    """CREATE TABLE lists (
         a ENUM('x','y','z'), b SET('a','b','c') NOT NULL DEFAULT 'a,b', c ENUM('it''s','a,b','back\\\\slash','new\\nline','"quoted"'),
         d ENUM('trailing  ', ' leading') CHARACTER SET latin1, e SET('ä','ö','日本') CHARSET utf8mb4 COLLATE utf8mb4_bin,
         f ENUM("double", "it's") DEFAULT "double"
       )""",
    """CREATE TABLE places (
         a GEOMETRY, b POINT NOT NULL, c LINESTRING, d POLYGON, e MULTIPOINT, f MULTILINESTRING, g MULTIPOLYGON, h GEOMETRYCOLLECTION,
         SPATIAL INDEX (b)
       )""",
    "CREATE TABLE documents (id INT PRIMARY KEY, body JSON, extra JSON NOT NULL)",
    "CREATE TABLE serials (id SERIAL, a INT)",
    "CREATE TABLE IF NOT EXISTS serials (id INT, other TEXT)",
    # -- CREATE TABLE: keys, attributes, options
    "CREATE TABLE k1 (a INT PRIMARY KEY, b INT UNIQUE, c INT UNIQUE KEY, d INT NOT NULL KEY COMMENT 'x')".replace(
        " NOT NULL KEY", ""
    ),
    "CREATE TABLE k2 (a INT, b VARCHAR(20), c TEXT, PRIMARY KEY (b(10), a), UNIQUE INDEX (a), UNIQUE (a, b), KEY k (c(7)))",
    "CREATE TABLE k3 (a INT, b INT, CONSTRAINT pk PRIMARY KEY USING BTREE (a DESC), CONSTRAINT u UNIQUE KEY (b), INDEX (b), KEY (b))",
    "CREATE TABLE k4 (a INT NOT NULL, b CHAR(5) NOT NULL, UNIQUE KEY named (b(3) ASC, a) USING HASH COMMENT 'it''s', FULLTEXT KEY ft (b))".replace(
        " USING HASH", ""
    ),
    "CREATE TABLE parent (id INT PRIMARY KEY, a INT, b INT, UNIQUE (a, b))",
    """CREATE TABLE child (id INT PRIMARY KEY, a INT, b INT, p INT REFERENCES parent (id),
         FOREIGN KEY (a, b) REFERENCES parent (a, b) ON DELETE CASCADE ON UPDATE SET NULL,
         CONSTRAINT named FOREIGN KEY (p) REFERENCES parent (id) ON DELETE NO ACTION, UNIQUE (p))""",
    """CREATE TABLE attributes (
         a INT AUTO_INCREMENT COMMENT 'a, (b) ''c'' /* no comment */ -- nor this', b VARCHAR(10) DEFAULT 'x, y' COLLATE utf8mb4_bin,
         c DECIMAL(5,2) DEFAULT -1.50, d BIT(4) DEFAULT b'1010', e VARBINARY(4) DEFAULT x'ff00', f INT DEFAULT NULL,
         g DOUBLE DEFAULT 1.5e-3, h CHAR(3) DEFAULT _utf8mb4'abc', i TIMESTAMP NULL DEFAULT NULL, j INT STORAGE DEFAULT COMMENT 'x',
         PRIMARY KEY (a)
       ) ENGINE=InnoDB AUTO_INCREMENT=100 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci COMMENT='the ''table''' ROW_FORMAT=DYNAMIC STATS_PERSISTENT=1""".replace(
        " STORAGE DEFAULT", ""
    ),
    "CREATE TABLE generated_columns (a INT, b INT GENERATED ALWAYS AS (a + 1) VIRTUAL, c INT AS (a * 2) STORED, d VARCHAR(20) AS (concat('x', a, ')')))",
    "CREATE TABLE by_collation (a VARCHAR(10) COLLATE latin1_bin, b CHAR(3) CHARACTER SET sjis, c TEXT) COLLATE utf8_general_ci",
    "CREATE TABLE ascii_and_unicode (a CHAR(10) ASCII, b CHAR(10) UNICODE, c VARCHAR(10) BINARY, d CHAR(5) CHARACTER SET gbk BINARY)",
    "CREATE TABLE quoted_names (`a b` INT, `select` INT, `back``tick` INT, `ü` VARCHAR(5), `key` INT PRIMARY KEY, `a,b)` INT)",
    "CREATE TABLE `table with space` (`from` INT, `日本語` TEXT)",
    "CREATE TABLE words (status INT, type VARCHAR(5), comment TEXT, date DATE, time TIME, position INT, first INT, after INT, value INT, data BLOB, engine INT, columns INT, charset INT, hash INT, visible INT)",
    "CREATE TABLE executable (a INT /*!50100 UNSIGNED */ NOT NULL, /*!50100 b INT, */ c INT /* plain, comment */) /*!40100 DEFAULT CHARACTER SET latin1 */ /*!50100 PARTITION BY HASH (c) PARTITIONS 3 */",
    "CREATE TABLE comments ( -- a comment, with 'quote\n a INT, # another ` one\n b INT /* and, ) this */\n)",
    "CREATE TABLE part_range (id INT NOT NULL, d DATE NOT NULL, PRIMARY KEY (id, d)) PARTITION BY RANGE (YEAR(d)) (PARTITION p0 VALUES LESS THAN (2000), PARTITION p1 VALUES LESS THAN (2010) COMMENT 'x', PARTITION p2 VALUES LESS THAN MAXVALUE)",
    "CREATE TABLE part_list (a INT, b INT) PARTITION BY LIST COLUMNS (a) SUBPARTITION BY HASH (b) SUBPARTITIONS 2 (PARTITION p0 VALUES IN (1, 2), PARTITION p1 VALUES IN (3))",
    "CREATE TABLE liked LIKE k2",
    "CREATE TABLE liked2 (LIKE attributes)",
    "CREATE TABLE IF NOT EXISTS liked3 LIKE generated_columns",
    "CREATE TABLE ddl_other.elsewhere (a VARCHAR(10), b ENUM('q'))",
    "CREATE TABLE ddl_other.elsewhere2 LIKE texts",
    "CREATE TABLE my (a INT, b VARCHAR(5)) ENGINE=MyISAM",
    "create table lower_case (a int unsigned not null auto_increment, b varchar(3) character set utf8 default null, primary key(a)) engine=innodb",
    "CREATE TEMPORARY TABLE temp (a INT)",
    "DROP TEMPORARY TABLE temp",
    # -- ALTER TABLE: columns
    "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(10), c ENUM('x','y')) DEFAULT CHARSET utf8mb4",
    "ALTER TABLE t ADD d INT",
    "ALTER TABLE t ADD COLUMN e VARCHAR(20) NOT NULL DEFAULT 'x' AFTER a",
    "ALTER TABLE t ADD COLUMN f BIGINT UNSIGNED FIRST",
    "ALTER TABLE t ADD (g INT, h TEXT CHARACTER SET latin1)",
    "ALTER TABLE t ADD i INT, ADD COLUMN j INT AFTER i, ADD k INT FIRST",
    "ALTER TABLE t DROP d",
    "ALTER TABLE t DROP COLUMN f, DROP g",
    "ALTER TABLE t MODIFY b VARCHAR(300)",
    "ALTER TABLE t MODIFY COLUMN c ENUM('y','x','z')",
    "ALTER TABLE t MODIFY a BIGINT UNSIGNED NOT NULL AFTER h",
    "ALTER TABLE t MODIFY k TINYINT FIRST",
    "ALTER TABLE t CHANGE b bb CHAR(30) CHARACTER SET latin1",
    "ALTER TABLE t CHANGE COLUMN i ii INT AFTER id, CHANGE j jj SMALLINT FIRST",
    "ALTER TABLE t CHANGE ii jj INT, CHANGE jj ii INT",
    "ALTER TABLE t ALTER bb SET DEFAULT 'abc'",
    "ALTER TABLE t ALTER COLUMN bb DROP DEFAULT",
    "ALTER TABLE t ALTER a SET DEFAULT 7, ALGORITHM=INPLACE, LOCK=NONE",
    "ALTER TABLE t ADD l INT, DROP jj, MODIFY e TEXT, CHANGE h hh VARCHAR(5) AFTER l",
    "ALTER TABLE t ADD m DECIMAL(10,3) UNSIGNED AFTER bb, ADD n SET('r','g','b') AFTER m",
    "ALTER TABLE t MODIFY n SET('g','r','b','y') NOT NULL",
    "ALTER TABLE t ADD o INT AS (id + 1) VIRTUAL AFTER id",
    "ALTER TABLE t ADD p VARCHAR(10) GENERATED ALWAYS AS (concat('a', id)) STORED",
    "ALTER TABLE t DROP o, DROP p",
    # -- ALTER TABLE: keys
    "ALTER TABLE t ADD UNIQUE (a)",
    "ALTER TABLE t ADD UNIQUE INDEX (a)",
    "ALTER TABLE t ADD UNIQUE KEY by_bb (bb(5), a)",
    "ALTER TABLE t ADD INDEX (m), ADD KEY by_l (l)",
    "ALTER TABLE t ADD CONSTRAINT con UNIQUE (l, m)",
    "ALTER TABLE t DROP INDEX a_2",
    "ALTER TABLE t DROP KEY by_l, DROP INDEX m",
    "ALTER TABLE t DROP PRIMARY KEY",
    "ALTER TABLE t ADD PRIMARY KEY (l, id)",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id), MODIFY l BIGINT",
    "ALTER TABLE t DROP COLUMN m, DROP INDEX con",
    "ALTER TABLE t CHANGE a aa BIGINT UNSIGNED NOT NULL",
    "ALTER TABLE t ADD q INT UNIQUE, ADD r INT UNIQUE KEY AFTER q",
    "ALTER TABLE t DROP INDEX q, DROP r",
    "CREATE UNIQUE INDEX made ON t (aa, bb(3)) COMMENT 'x'",
    "CREATE INDEX made2 ON t (bb) USING BTREE",
    "DROP INDEX made ON t",
    "DROP INDEX made2 ON t",
    "CREATE FULLTEXT INDEX ft ON t (e)",
    "ALTER TABLE t ADD FULLTEXT INDEX (e)",
    "ALTER TABLE k2 MODIFY b VARCHAR(10)",
    "ALTER TABLE k1 DROP PRIMARY KEY, ADD PRIMARY KEY (b)",
    "ALTER TABLE k1 MODIFY c INT PRIMARY KEY, DROP PRIMARY KEY",
    # -- ALTER TABLE: character sets
    "ALTER TABLE texts DEFAULT CHARACTER SET utf8mb4",
    "ALTER TABLE texts ADD added VARCHAR(10), ADD added2 ENUM('ü')",
    "ALTER TABLE texts CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "ALTER TABLE texts CONVERT TO CHARACTER SET latin1",
    "ALTER TABLE texts CHARACTER SET = utf8, COLLATE = utf8_bin",
    "ALTER TABLE texts DROP added2, CONVERT TO CHARSET utf8mb4, ALGORITHM=COPY",
    "ALTER TABLE lists CONVERT TO CHARACTER SET utf8mb4",
    "ALTER TABLE by_collation CONVERT TO CHARACTER SET binary",
    "ALTER TABLE attributes COLLATE utf8mb4_bin, ADD z VARCHAR(3)",
    "ALTER TABLE nationals COLLATE latin1_bin, ADD z VARCHAR(3), MODIFY a CHAR(5)",
    "ALTER DATABASE ddl CHARACTER SET latin2",
    "CREATE TABLE of_latin2 (a VARCHAR(10))",
    "ALTER DATABASE COLLATE utf8mb4_bin",
    "CREATE TABLE of_utf8mb4 (a VARCHAR(10), b SET('x'))",
    "ALTER TABLE of_latin2 CONVERT TO CHARACTER SET DEFAULT",
    "CREATE DATABASE ddl_third DEFAULT CHARACTER SET cp1251 COLLATE cp1251_bin",
    "CREATE TABLE ddl_third.a (x TEXT)",
    "CREATE DATABASE IF NOT EXISTS ddl_third CHARSET latin1",
    "CREATE TABLE ddl_third.b (x TEXT)",
    "CREATE SCHEMA ddl_fourth",
    "CREATE TABLE ddl_fourth.a (x VARCHAR(9))",
    "DROP SCHEMA ddl_fourth",
    "CREATE SCHEMA ddl_fourth COLLATE = utf8mb4_bin",
    "CREATE TABLE ddl_fourth.a (x VARCHAR(8))",
    # -- ALTER TABLE: everything else
    "ALTER TABLE t ENGINE=InnoDB",
    "ALTER TABLE t COMMENT='changed', AUTO_INCREMENT=50, ROW_FORMAT=COMPACT",
    "ALTER TABLE t FORCE",
    "ALTER TABLE t ORDER BY l DESC, id",
    "ALTER TABLE t DISABLE KEYS",
    "ALTER TABLE t ENABLE KEYS",
    "ALTER TABLE t /*!50100 ADD COLUMN in_comment INT */ /* AFTER id */",
    "/* leading comment */ ALTER /* here */ TABLE -- there\n t ADD COLUMN commented INT COMMENT 'a; b' # end",
    "ALTER TABLE ddl.t ADD qualified INT",
    "ALTER TABLE `ddl`.`t` DROP `qualified`, DROP `commented`",
    "ALTER TABLE part_range ADD COLUMN n INT",
    "ALTER TABLE part_range REORGANIZE PARTITION p2 INTO (PARTITION p2 VALUES LESS THAN (2020), PARTITION p3 VALUES LESS THAN MAXVALUE)",
    "ALTER TABLE part_range DROP PARTITION p0",
    "ALTER TABLE part_range TRUNCATE PARTITION p1",
    "ALTER TABLE part_range REBUILD PARTITION p1, p2",
    "CREATE TABLE exchanged LIKE part_range",
    "ALTER TABLE exchanged REMOVE PARTITIONING",
    "ALTER TABLE part_range EXCHANGE PARTITION p1 WITH TABLE exchanged",
    "ALTER TABLE executable COALESCE PARTITION 1",
    "ALTER TABLE executable ADD PARTITION PARTITIONS 2",
    "ALTER TABLE executable REMOVE PARTITIONING",
    "ALTER TABLE executable ADD x INT PARTITION BY KEY (c) PARTITIONS 2",
    "ALTER TABLE k4 DROP INDEX named, ADD UNIQUE named (a), ADD INDEX (b), DROP INDEX ft",
    "ALTER TABLE child DROP FOREIGN KEY named",
    "ALTER TABLE child ADD CONSTRAINT named2 FOREIGN KEY fk (a) REFERENCES parent (id) ON UPDATE CASCADE",
    "ALTER TABLE child ADD x INT, ADD UNIQUE (x)",
    # -- names
    "ALTER TABLE k1 RENAME k1_renamed",
    "ALTER TABLE k1_renamed RENAME TO k1, ADD renamed INT",
    "ALTER TABLE k1 RENAME AS ddl_other.k1",
    "RENAME TABLE ddl_other.k1 TO ddl.k1",
    "RENAME TABLE k1 TO tmp, k2 TO k1, tmp TO k2",
    "CREATE TABLE _t_gho LIKE t",
    "ALTER TABLE _t_gho ADD COLUMN ghost VARCHAR(7), DROP hh",
    "RENAME TABLE `ddl`.`t` TO `ddl`.`_t_del`, `ddl`.`_t_gho` TO `ddl`.`t`",
    "DROP TABLE IF EXISTS `ddl`.`_t_del`",
    "CREATE TABLE `ddl`.`_lists_new` LIKE `ddl`.`lists`",
    "ALTER TABLE `ddl`.`_lists_new` modify a enum('z','y','x')",
    "RENAME TABLE `ddl`.`lists` TO `ddl`.`_lists_old`, `ddl`.`_lists_new` TO `ddl`.`lists`",
    "DROP TABLE IF EXISTS `_lists_old` /* generated by server */",
    "TRUNCATE TABLE t",
    "TRUNCATE lists",
    "DROP TABLE k3",
    "CREATE TABLE k3 (x VARCHAR(4), y INT UNSIGNED)",
    "DROP TABLE IF EXISTS missing, k3, missing2",
    "CREATE TABLE k3 (z CHAR)",
    "DROP TABLE my, lower_case",
    # -- sql_mode
    "SET sql_mode = 'ANSI_QUOTES'",
    """CREATE TABLE "ansi" ("id" INT PRIMARY KEY, "a ""b" VARCHAR(5) DEFAULT 'x', e ENUM('y'))""",
    """ALTER TABLE "ansi" ADD COLUMN "c" INT AFTER "id", RENAME TO "ansi2" """,
    "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
    r"CREATE TABLE backslashes (a ENUM('a\', 'b\n'), b INT COMMENT 'c:\')",
    "SET sql_mode = 'REAL_AS_FLOAT'",
    "CREATE TABLE real_as_float (a REAL, b REAL(7,2), c DOUBLE)",
    "SET sql_mode = ''",
    "CREATE TABLE silent (a VARCHAR(40000) CHARSET utf8mb4, b VARBINARY(70000), c TEXT(5))",
    # -- what is no definition of a table
    "CREATE VIEW v AS SELECT * FROM t",
    "DROP VIEW v",
    "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.bb = 'ALTER TABLE t DROP bb'",
    "DROP TRIGGER tr",
    "CREATE PROCEDURE pr() BEGIN CREATE TABLE IF NOT EXISTS by_procedure (a INT UNSIGNED); END",
    "CALL pr()",
    "DROP PROCEDURE pr",
    "CREATE EVENT ev ON SCHEDULE EVERY 1 YEAR STARTS '2037-01-01' DO DROP TABLE t",
    "DROP EVENT ev",
    "ANALYZE TABLE t",
    "DROP DATABASE ddl_fourth",
    "DROP DATABASE IF EXISTS ddl_third",
)

_MYSQL_PARTS: Final = (
    "ALTER TABLE t RENAME COLUMN id TO ident",
    "ALTER TABLE t RENAME COLUMN ident TO id, RENAME COLUMN l TO ll, ADD after_rename INT AFTER ll",
    "ALTER TABLE t RENAME COLUMN ll TO after_rename, RENAME COLUMN after_rename TO ll",
    "ALTER TABLE t RENAME INDEX by_bb TO by_bb2, RENAME KEY a TO a9",
    "ALTER TABLE t ALTER INDEX a9 INVISIBLE",
    "ALTER TABLE t ALTER INDEX a9 VISIBLE",
    "CREATE TABLE m1 (a INT DEFAULT (1 + 2), b JSON DEFAULT (JSON_ARRAY()), c POINT NOT NULL SRID 4326, UNIQUE ((a + 1)), INDEX ix (a DESC) INVISIBLE)",
    "ALTER TABLE m1 ADD INDEX ((a * 2)), ADD UNIQUE INDEX func ((a + 5), a)",
    "CREATE TABLE m2 (a INT COLUMN_FORMAT DYNAMIC STORAGE DISK, b VARCHAR(10) COLLATE utf8mb4_0900_ai_ci) ENCRYPTION='N' COMPRESSION='NONE'".replace(
        " STORAGE DISK", ""
    ),
    "ALTER TABLE m2 ADD COLUMN c INT, ALGORITHM=INSTANT",
    "CREATE TABLE m3 (a DATETIME DEFAULT CURRENT_TIMESTAMP, b TIMESTAMP, c TIMESTAMP DEFAULT CURRENT_TIMESTAMP)",
    "SET explicit_defaults_for_timestamp = OFF",
    "CREATE TABLE m4 (a TIMESTAMP, b TIMESTAMP NULL)",
    "SET explicit_defaults_for_timestamp = ON",
    "ALTER TABLE m2 SECONDARY_ENGINE = NULL",
)

_MARIADB_PARTS: Final = (
    "CREATE TABLE selected AS SELECT a, b FROM k2",
    "CREATE TABLE selected2 (z INT UNSIGNED, UNIQUE (z)) SELECT b, c FROM texts",
    "CREATE OR REPLACE TABLE r (a INT UNSIGNED, b UUID, c INET6, d INET4)",
    "CREATE OR REPLACE TABLE r (x VARCHAR(5), y UUID NOT NULL PRIMARY KEY DEFAULT uuid())",
    "ALTER TABLE r ADD COLUMN IF NOT EXISTS x INT, ADD COLUMN IF NOT EXISTS z INT",
    "ALTER TABLE r DROP COLUMN IF EXISTS nothing, DROP COLUMN IF EXISTS z",
    "ALTER TABLE r MODIFY COLUMN IF EXISTS x VARCHAR(6), MODIFY COLUMN IF EXISTS nothing INT",
    "ALTER TABLE r CHANGE COLUMN IF EXISTS x xx VARCHAR(7), CHANGE COLUMN IF EXISTS nothing n INT",
    "ALTER TABLE IF EXISTS r ADD INDEX IF NOT EXISTS ix (xx), ADD UNIQUE INDEX IF NOT EXISTS ux (xx)",
    "ALTER TABLE r DROP INDEX IF EXISTS ix, DROP INDEX IF EXISTS ix2",
    "ALTER TABLE IF EXISTS nothing ADD x INT",
    "ALTER TABLE r RENAME COLUMN xx TO x, RENAME INDEX ux TO ux2",
    "ALTER TABLE r WAIT 10 ADD w INT INVISIBLE DEFAULT 5",
    "ALTER TABLE r NOWAIT ADD w2 INT",
    "CREATE INDEX IF NOT EXISTS ci ON r (w)",
    "CREATE OR REPLACE UNIQUE INDEX ci ON r (w, w2)",
    "DROP INDEX IF EXISTS ci ON r",
    "DROP INDEX IF EXISTS ci ON r",
    "RENAME TABLE IF EXISTS nothing TO nothing2, r TO r2",
    "RENAME TABLE r2 WAIT 5 TO r",
    "CREATE TABLE compressed_columns (a VARCHAR(100) COMPRESSED, b TEXT COMPRESSED=zlib, c BLOB /*M!100301 COMPRESSED*/)",
    "CREATE TABLE versioned (a INT PRIMARY KEY, b VARCHAR(5)) WITH SYSTEM VERSIONING",
    "CREATE TABLE versioned2 (a INT, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, e TIMESTAMP(6) GENERATED ALWAYS AS ROW END INVISIBLE, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
    "CREATE TABLE unversioned (a INT)",
    "ALTER TABLE unversioned ADD SYSTEM VERSIONING",
    "SET system_versioning_alter_history = KEEP",
    "ALTER TABLE versioned ADD c INT, MODIFY b TEXT",
    "ALTER TABLE unversioned DROP SYSTEM VERSIONING",
    "CREATE TABLE partly (a INT WITH SYSTEM VERSIONING, b INT WITHOUT SYSTEM VERSIONING)",
    "CREATE TABLE periods (id INT, d1 DATE, d2 DATE, PERIOD FOR app (d1, d2), UNIQUE u (id, app WITHOUT OVERLAPS))",
    "CREATE SEQUENCE seq START WITH 100 INCREMENT BY 5",
    "CREATE OR REPLACE SEQUENCE seq",
    "CREATE SEQUENCE IF NOT EXISTS seq2 CACHE 10",
    "DROP SEQUENCE seq2",
    "CREATE TABLE with_sequence (a INT DEFAULT NEXT VALUE FOR seq, b INT DEFAULT (1 + 1), c VARCHAR(50) DEFAULT concat('a', 'b'), d INT DEFAULT nextval(seq))",
    "CREATE TABLE collated (a VARCHAR(5) COLLATE uca1400_ai_ci, b VARCHAR(5)) CHARSET utf8mb4 COLLATE uca1400_as_ci",
    "CREATE TABLE options_of_engine (a INT) PAGE_CHECKSUM=1 TRANSACTIONAL=1 ENGINE=Aria",
    "CREATE TABLE checks (a INT CHECK (a > 0), b INT CHECK (b > 0), CONSTRAINT c2 CHECK (a <> b), CHECK (a < 100))",
    "ALTER TABLE checks DROP CONSTRAINT c2, ADD CONSTRAINT c3 CHECK (b < 50)",
    "ALTER TABLE part_range CONVERT PARTITION p1 TO TABLE converted",
    "CREATE OR REPLACE DATABASE ddl_fifth CHARACTER SET latin7",
    "CREATE TABLE ddl_fifth.a (b TEXT)",
    "CREATE OR REPLACE DATABASE ddl_fifth CHARACTER SET utf8mb4",
    "DROP DATABASE ddl_fifth",
    "SET STATEMENT max_statement_time = 100 FOR ALTER TABLE r ADD by_set INT",
    "SET sql_mode = 'ORACLE'",
    "CREATE TABLE oracle (a DATE, b NUMBER(5), c VARCHAR2(10), d CLOB)",
    "SET sql_mode = ''",
    "CREATE TABLE persistents (a INT, b INT AS (a + 1) PERSISTENT, c INT AS (a) VIRTUAL INVISIBLE)",
    "ALTER TABLE t ALTER INDEX a IGNORED",
)

STATEMENTS: Final = {
    "mysql": (*_BOTH_PARTS, *_MYSQL_PARTS),
    "mariadb": (*_BOTH_PARTS, *_MARIADB_PARTS),
}
"""By server: those for both first."""

NOT_UNDERSTOOD: Final = frozenset(
    {
        # Servers convert members that are not ASCII wrongly.
        "ALTER TABLE texts CONVERT TO CHARACTER SET latin1",
        # What row format logs of these has the columns.
        "CREATE TABLE selected AS SELECT a, b FROM k2",
        "CREATE TABLE selected2 (z INT UNSIGNED, UNIQUE (z)) SELECT b, c FROM texts",
        "CREATE TABLE oracle (a DATE, b NUMBER(5), c VARCHAR2(10), d CLOB)",
    }
)
"""Those of which the definition is not told from their text."""
