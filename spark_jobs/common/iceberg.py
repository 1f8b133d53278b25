"""Iceberg tables in which a run replaces a slice of the raw topic, each in one commit.

The Parquet files of the executors are staged: each table gets a branch, on which the rows of the slice
are deleted and those of the files appended. :meth:`IcebergTables.publish` then fast-forwards ``main`` of each
table to its branch. So a run that is killed leaves every table with either its old or its new rows of the
slice, and repeating a slice adds nothing twice.

The columns of a table are those of all schemas that it has had. A type is widened if Iceberg supports it;
otherwise the column continues in a new one whose name contains the type.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)

from millrace.binlog.names import quoted_name
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from spark_jobs.common.session import java_class, java_session

_DEAD_LETTERS: Final = "deadletter"
"""A table of what is made of the log into rows; those of rows themselves have a point in their names."""

_OF_EVENTS: Final = {"events", "events_deadletter"}
"""The tables of what is made of it into typed events."""

_DEFAULT_CATALOG: Final = "millrace"
_CATALOG: Final = "spark.sql.catalog."
_SPARK_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
_OF: Final = "millrace.table"
"""Property of a table: whose rows it has."""

_PROPERTIES: Final = {
    "format-version": "2",
    # Files of the pieces follow the log: to shuffle them by day would give a day to one task.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
}
_BRANCH: Final = "millrace_"
_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How old the last snapshot of a branch must be for Iceberg's expire_snapshots to remove it."""

_WIDENS: Final = {(IntegerType(), LongType()), (FloatType(), DoubleType())}


@dataclass(frozen=True, slots=True)
class Slice:
    """The raw offsets that a run replaces: from ``start`` to before ``end``, without the ``unfinished``.

    Those are first and last offsets of transactions that the slice has the begin of and not the end.
    ``prepared`` are those of which it has only the end: they are replaced with it.
    """

    start: int
    end: int
    unfinished: Sequence[tuple[int, int]] = ()
    prepared: Sequence[tuple[int, int]] = ()

    @property
    def first(self) -> int:
        """The first offset that is replaced."""
        return min([self.start, *(first for first, _ in self.prepared)])

    def condition(self, table: str) -> str:
        """Say the same in SQL, for a table."""
        within = f"raw_offset >= {self.start} AND raw_offset < {self.end}"
        parts = [f"raw_offset BETWEEN {first} AND {last}" for first, last in self.prepared]
        whole = " OR ".join([within, *parts])
        parts = [f"NOT raw_offset BETWEEN {first} AND {last}" for first, last in self.unfinished]
        text = " AND ".join([f"({whole})" if self.prepared else whole, *parts])
        if table != _DEAD_LETTERS or text == within:
            return text
        # What the decoder cannot read does not wait for the end of its transaction.
        return f"(service = 'decoder' AND {within}) OR (service <> 'decoder' AND {text})"


def open_catalog(spark: SparkSession, name: str | None, warehouse: str) -> str:
    """Return the name of a catalog that works: that of Spark's settings, else one of files in a folder."""
    if name is None:
        name = _DEFAULT_CATALOG
        # The tables hold the whole paths of their files.
        folder = warehouse if urlsplit(warehouse).scheme else str(Path(warehouse).absolute())
        settings = {"": _SPARK_CATALOG, ".type": "hadoop", ".warehouse": folder}
        for key, value in settings.items():
            spark.conf.set(f"{_CATALOG}{name}{key}", value)
    elif spark.conf.get(f"{_CATALOG}{name}", None) is None:
        problem = (
            f"--catalog is {name!r}, and Spark has no setting {_CATALOG}{name}: set it with spark-submit "
            "--conf or in spark-defaults.conf of SPARK_CONF_DIR, or leave --catalog out"
        )
        raise SettingsError([problem])
    # A table that is kept in memory would not know what was written to its branch.
    spark.conf.set(f"{_CATALOG}{name}.cache-enabled", "false")
    try:
        spark.catalog.databaseExists(f"{quoted_name(name)}.{_DEFAULT_CATALOG}")
    except (PySparkException, Py4JJavaError) as error:
        told = _first_line(error)
        advice = ""
        if "org.apache.iceberg" in told and ("find" in told or "ClassNotFound" in told):
            advice = ": give spark-submit the jars that 'millrace job jars --iceberg' prints"
        raise UserError(f"the catalog {name} does not answer ({told}){advice}", ExitCode.SETTINGS) from None
    return name


class IcebergTables:
    """The tables of a source in a catalog, as a run makes them."""

    def __init__(self, spark: SparkSession, catalog: str, source: str, run: str) -> None:
        self._spark = spark
        self._namespace = f"{quoted_name(catalog)}.{quoted_name(source)}"
        self._branch = _BRANCH + re.sub(r"\W", "_", run)
        self._staged: list[str] = []
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")

    def stage(self, table: str, groups: Mapping[str, Sequence[str]], part: Slice) -> None:
        """Replace a slice of a table on its branch by the rows of files, in groups that share a schema."""
        name = self._name(table)
        known = self._schema(table, name)
        schemas = {group: self._spark.read.parquet(paths[0]).schema for group, paths in groups.items()}
        whole = known or StructType()
        renamed: dict[str, StructType] = {}
        for group in sorted(schemas):
            whole, renamed[group] = united(whole, schemas[group])
        if known is None:
            self._create(table, name, whole)
        elif whole != known:
            self._evolve(name, whole)
        self._begin(name)
        if self._has_rows(name, part):
            self._delete(table, name, part)
        for paths, written, read in _readings(groups, schemas, renamed, whole):
            frame = self._spark.read.schema(written).parquet(*paths)
            if read != written:
                # From struct to struct a cast goes by the places of fields: it renames them.
                columns = [sf.col(name) for name in written.names]
                named = zip(columns, read.fields, strict=True)
                frame = frame.select([column.cast(to.dataType).alias(to.name) for column, to in named])
            # Dead letters may lie before the first record that the slice makes.
            made = frame.to(whole).where(sf.col("raw_offset") >= part.first)
            made.writeTo(self._on_branch(name)).append()

    def clear(self, part: Slice, *, events: bool, but: Sequence[str]) -> None:
        """Empty a slice of all tables of rows, or of those of events, but of some, on their branches."""
        for row in self._spark.sql(f"SHOW TABLES IN {self._namespace}").collect():
            name = f"{self._namespace}.{quoted_name(row.tableName)}"
            of = self._load(name).properties().get(_OF)
            if of is None or of in but or (of in _OF_EVENTS) != events or not self._has_rows(name, part):
                continue
            self._begin(name)
            self._delete(of, name, part)

    def publish(self) -> dict[str, int]:
        """Let all that is staged be the tables; give the snapshot of each by its name."""
        snapshots = {}
        for name in list(self._staged):
            table = self._load(name)
            try:
                table.manageSnapshots().fastForwardBranch("main", self._branch).commit()
            except (PySparkException, Py4JJavaError) as error:
                raise UserError(
                    f"{_shown(name)} was changed by another writer while this job ran "
                    f"({_first_line(error)}): run the job again for the same slice",
                    ExitCode.DATA,
                ) from None
            self._staged.remove(name)
            table.refresh()
            snapshots[_shown(name)] = int(table.currentSnapshot().snapshotId())
            # No other: it may be that of a run at work.
            table.manageSnapshots().removeBranch(self._branch).commit()
        return snapshots

    def discard(self) -> None:
        """Discard what is staged, if the tables can be reached."""
        for name in self._staged:
            with suppress(Exception):
                self._load(name).manageSnapshots().removeBranch(self._branch).commit()

    # -- one table ------------------------------------------------------------------------------------

    def _name(self, table: str) -> str:
        """Name a table: its database and its own name, with two underscores instead of the dot."""
        return f"{self._namespace}.{quoted_name(table.replace('.', '__', 1))}"

    def _load(self, name: str) -> Any:
        tables = java_class(self._spark, "org.apache.iceberg.spark.Spark3Util")
        return tables.loadIcebergTable(java_session(self._spark), name)

    def _schema(self, table: str, name: str) -> StructType | None:
        """Return the columns of a table, if there is one; refuse one that is another's."""
        if not self._spark.catalog.tableExists(name):
            return None
        of = self._load(name).properties().get(_OF)
        if of != table:
            whose = "is not a table of Millrace" if of is None else f"has the rows of {of}"
            raise UserError(
                f"{_shown(name)} {whose}, and {table} would be written to it: rename it, or name another "
                "catalog or warehouse",
                ExitCode.SETTINGS,
            )
        return self._spark.table(name).schema

    def _create(self, table: str, name: str, schema: StructType) -> None:
        writer = self._spark.createDataFrame([], schema).writeTo(name).using("iceberg")
        for key, value in {**_PROPERTIES, _OF: table}.items():
            writer = writer.tableProperty(key, value)
        if "day" in schema.names:
            writer = writer.partitionedBy(sf.col("day"))
        writer.create()

    def _evolve(self, name: str, schema: StructType) -> None:
        """Add columns and widen types, in one commit."""
        typed = java_class(self._spark, "org.apache.spark.sql.types.DataType").fromJson(schema.json())
        wanted = java_class(self._spark, "org.apache.iceberg.spark.SparkSchemaUtil").convert(typed)
        self._load(name).updateSchema().unionByNameWith(wanted).commit()

    def _begin(self, name: str) -> None:
        branches = self._load(name).manageSnapshots().createBranch(self._branch)
        branches.setMaxRefAgeMs(self._branch, _KEPT_MS).commit()
        self._staged.append(name)

    def _has_rows(self, name: str, part: Slice) -> bool:
        """Return whether a table may have rows of a slice, by what its metadata says."""
        expressions = java_class(self._spark, "org.apache.iceberg.expressions.Expressions")
        scan = self._load(name).newScan()
        scan = scan.filter(expressions.greaterThanOrEqual("raw_offset", part.first))
        files = scan.filter(expressions.lessThan("raw_offset", part.end)).planFiles()
        try:
            return bool(files.iterator().hasNext())
        finally:
            files.close()

    def _delete(self, table: str, name: str, part: Slice) -> None:
        branch = self._on_branch(name)
        self._spark.sql(f"DELETE FROM {branch} WHERE {part.condition(table)}")  # noqa: S608 - names are quoted

    def _on_branch(self, name: str) -> str:
        """Name a table as it is on the branch of the run."""
        return f"{name}.{quoted_name(f'branch_{self._branch}')}"


def united(known: StructType, found: StructType) -> tuple[StructType, StructType]:
    """Return the columns that have room for those of both; and those that are found by their names in it."""
    fields = list(known.fields)
    at = {field.name.lower(): index for index, field in enumerate(fields)}
    named = []
    for field in found.fields:
        name, type_ = field.name, field.dataType
        for tried in (name, f"{name}__{_tag(type_)}"):
            index = at.get(tried.lower())
            if index is None:
                at[tried.lower()] = len(fields)
                fields.append(StructField(tried, type_))
                named.append(StructField(tried, type_))
                break
            both = _united_type(fields[index].dataType, type_)
            if both is not None:
                fields[index] = StructField(fields[index].name, both[0])
                named.append(StructField(fields[index].name, both[1]))
                break
    return StructType(fields), StructType(named)


def _united_type(known: DataType, found: DataType) -> tuple[DataType, DataType] | None:
    """Return the wider type, and the one found by the names in it; None where none has room for both."""
    match known, found:
        case StructType(), StructType():
            return united(known, found)
        case ArrayType(), ArrayType():
            both = _united_type(known.elementType, found.elementType)
            return None if both is None else (ArrayType(both[0]), ArrayType(both[1]))
        case DecimalType(), DecimalType() if known.scale == found.scale:
            return max(known, found, key=lambda one: one.precision), found
    if known == found or (found, known) in _WIDENS:
        return known, found
    return (found, found) if (known, found) in _WIDENS else None


def _tag(type_: DataType) -> str:
    """Name a type as a part of a column's name."""
    text = type_.simpleString() if isinstance(type_, DecimalType) else type_.typeName()
    return re.sub(r"\W+", "_", text).strip("_")


def _readings(
    groups: Mapping[str, Sequence[str]],
    schemas: Mapping[str, StructType],
    renamed: Mapping[str, StructType],
    whole: StructType,
) -> Iterator[tuple[list[str], StructType, StructType]]:
    """Yield files that are read together, the columns to read of them, and what these are in the table."""
    plain: list[str] = []
    for group, paths in groups.items():
        if _names(schemas[group]) == _names(renamed[group]):
            plain += paths
        else:
            yield list(paths), schemas[group], renamed[group]
    if plain:
        yield plain, whole, whole


def _names(type_: DataType) -> Any:
    match type_:
        case StructType():
            return [(field.name.lower(), _names(field.dataType)) for field in type_.fields]
        case ArrayType():
            return _names(type_.elementType)
    return None


def _shown(name: str) -> str:
    return name.replace("`", "")


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else f"{java.getClass().getName()}: {java.getMessage()}"
    return text.strip().split("\n")[0][:300]
