"""Records of Avro as columns of Arrow, without an object of Python for each value.

A schema becomes a layout of Arrow (:func:`arrow_type`) and a plan, the same as numbers, which the kernel
(:mod:`millrace.kernel.columns`) follows; the reference is fastavro. Of a union of null and one other type the
value is nullable; of any other union, of records, one branch is chosen beforehand (:func:`chosen`), since a
column has one type.

Arrow's columnar format is specified at https://arrow.apache.org/docs/format/Columnar.html.
"""

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, cast

import fastavro
import pyarrow as pa

from millrace import kernel
from millrace.avro.schemas import Schema

if TYPE_CHECKING:
    from millrace.kernel.columns import Buffer, ColumnReader
    from millrace.kernel.records import RecordBlock
    from millrace.kernel.rows import RowBlock


class ColumnsError(ValueError):
    """Records are none of the schema, or the schema has what a column cannot be."""


class _Kind(IntEnum):
    """How a value is laid out; ``make generate`` copies it to the kernel."""

    LONG = 1
    INT = 2
    BOOLEAN = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    DECIMAL = 7
    RUNS = 8
    ARRAY = 9
    RECORD = 10


_NO_BRANCH: Final = -1
_OPTIONAL: Final = -2

_TYPES: Final[Mapping[tuple[str, str | None], tuple[pa.DataType, _Kind, int]]] = {
    ("long", None): (pa.int64(), _Kind.LONG, 8),
    ("long", "timestamp-micros"): (pa.timestamp("us", "UTC"), _Kind.LONG, 8),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), _Kind.LONG, 8),
    ("int", None): (pa.int32(), _Kind.INT, 4),
    ("int", "date"): (pa.date32(), _Kind.INT, 4),
    ("boolean", None): (pa.bool_(), _Kind.BOOLEAN, 1),
    ("float", None): (pa.float32(), _Kind.FLOAT, 4),
    ("double", None): (pa.float64(), _Kind.DOUBLE, 8),
    ("bytes", None): (pa.binary(), _Kind.BYTES, 0),
    ("string", None): (pa.string(), _Kind.BYTES, 0),
}
_DECIMAL_DIGITS: Final = 38
"""Digits of a decimal of 16 bytes; one of 32 has 76."""

_BRANCH: Final = "millrace.branch"
_UNION: Final = "millrace.union"
"""Properties of a type that was chosen of a union: its number there, and the union."""

_DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string())
_EMPTY: Final = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])
"""One empty text. It is made of bytes: for the first object of Python pyarrow loads pandas."""

Part = tuple[int, int, bytes | None, "bytes | Buffer", "bytes | Buffer", "bytes | Buffer"]
"""Of a type: its values, nulls among them, which are valid, the values themselves, their offsets.

Where each run of equal values stands once, these are last, and the values are their numbers.
"""


def chosen(union: Sequence[Schema], branch: int) -> Schema:
    """Return one branch of a union in place of it: records that have another are none of the schema then."""
    schema = union[branch]
    named = schema if isinstance(schema, dict) else {"type": schema}
    return {**named, _BRANCH: branch, _UNION: union}


def _as_written(schema: Any) -> Any:
    """Return a schema as records are written by it, with all branches of each union."""
    if isinstance(schema, list):
        return [_as_written(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if _UNION in schema:
        return schema[_UNION]
    inside: dict[str, Any] = {name: _as_written(schema[name]) for name in ("type", "items") if name in schema}
    if "fields" in schema:
        inside["fields"] = [_as_written(field) for field in schema["fields"]]
    return {**schema, **inside}


def _chosen_fields(schema: Any) -> Iterator[Any]:
    """Yield the fields of a record that have one chosen branch of a union."""
    for field in schema["fields"]:
        if isinstance(field["type"], dict) and _UNION in field["type"]:
            yield field


def _full_name(record: Any) -> str:
    namespace = record.get("namespace")
    return f"{namespace}.{record['name']}" if namespace else str(record["name"])


class _Layout:
    """The type of Arrow and the plan of a schema; strings in the fields ``repeating`` have a dictionary."""

    def __init__(self, schema: Schema, repeating: Collection[str] = ()) -> None:
        self._repeating = repeating
        self.plan: list[tuple[int, int, int, int]] = []
        self.types: list[pa.DataType] = []
        self._named: dict[str, Any] = {}
        self._name(_as_written(schema), "")
        self.type, _ = self._add(schema, "", "")

    def _name(self, schema: Any, namespace: str) -> None:
        """Take note of the records that a schema defines, also in branches that are not chosen."""
        if isinstance(schema, list):
            for branch in schema:
                self._name(branch, namespace)
        elif isinstance(schema, dict):
            if schema["type"] == "record":
                namespace = schema.get("namespace", namespace)
                self._named[f"{namespace}.{schema['name']}"] = schema
            for inner in (schema.get("items"), *(field["type"] for field in schema.get("fields", ()))):
                self._name(inner, namespace)

    def _add(self, schema: Any, namespace: str, field_name: str) -> tuple[pa.DataType, bool]:
        """Lay out a type within the outermost field named; give that of Arrow, and whether it may be null."""
        branch = _NO_BRANCH
        if isinstance(schema, list):
            if len(schema) != 2 or "null" not in schema:
                raise ColumnsError(f"a union of {len(schema)} types is not a column: one must be chosen")
            # With null after, the default is a value, which the services always write.
            schema, branch = (schema[1], _OPTIONAL) if schema[0] == "null" else (schema[0], 0)
        schema = self._resolved(schema, namespace)
        if isinstance(schema, dict):
            branch = schema.get(_BRANCH, branch)
        at = len(self.plan)
        self.plan.append((0, 0, 0, 0))
        self.types.append(pa.null())
        kind, width, found = self._laid_out(schema, namespace, field_name)
        self.plan[at] = kind, branch, width, len(self.plan)
        self.types[at] = found
        return found, branch == _OPTIONAL

    def _resolved(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str) and (schema, None) not in _TYPES:
            full = schema if "." in schema else f"{namespace}.{schema}"
            if full not in self._named:
                raise ColumnsError(f"{schema} is not a type that a column can have")
            return self._named[full]
        return schema

    def _laid_out(self, schema: Any, namespace: str, field_name: str) -> tuple[int, int, pa.DataType]:
        name, logical = (
            (schema["type"], schema.get("logicalType")) if isinstance(schema, dict) else (schema, None)
        )
        if name == "record":
            namespace = schema.get("namespace", namespace)
            fields = []
            for field in schema["fields"]:
                type_, nullable = self._add(field["type"], namespace, field_name or field["name"])
                fields.append(pa.field(field["name"], type_, nullable=nullable))
            return _Kind.RECORD, 0, pa.struct(fields)
        if name == "array":
            type_, nullable = self._add(schema["items"], namespace, field_name)
            return _Kind.ARRAY, 0, pa.list_(pa.field("element", type_, nullable=nullable))
        if (name, logical) == ("bytes", "decimal"):
            precision, scale = schema["precision"], schema.get("scale", 0)
            small = precision <= _DECIMAL_DIGITS
            return (
                _Kind.DECIMAL,
                16 if small else 32,
                (pa.decimal128 if small else pa.decimal256)(precision, scale),
            )
        if name == "string" and field_name in self._repeating:
            return _Kind.RUNS, 4, _DICTIONARY
        found = _TYPES.get((name, logical)) or _TYPES.get((name, None))
        if found is None:
            raise ColumnsError(f"{name} is not a type that a column can have")
        return found[1], found[2], found[0]


def arrow_type(schema: Schema) -> pa.DataType:
    """Return the type of Arrow for a schema; raises :class:`ColumnsError` where it has none."""
    return _Layout(schema).type


def _kernel(plan: list[tuple[int, int, int, int]], prefix: int, *, whole: bool) -> "ColumnReader | None":
    if not kernel.has("columns"):
        return None
    from millrace.kernel.columns import ColumnReader  # noqa: PLC0415 - where it is built

    return ColumnReader(plan, prefix, whole)


def _of_runs(numbers: pa.Array, offsets: pa.Buffer, runs: pa.Buffer) -> pa.DictionaryArray:
    """Put a column together of the text of each run, and for each value the number of its run."""
    texts = pa.Array.from_buffers(pa.string(), offsets.size // 4 - 1, [None, offsets, runs])
    if not texts:  # all are null, or inside of what is null, where each has a number all the same
        texts = _EMPTY
    elif len(texts) > 1:  # a text may have several runs
        found = texts.dictionary_encode()
        numbers, texts = found.indices.take(numbers), found.dictionary
    return pa.DictionaryArray.from_arrays(numbers, texts, safe=False)


class AvroColumns:
    """Reads records of one schema, a record type, after ``prefix`` bytes each.

    With ``whole`` a record must end where its fields do; without, more may follow. Strings in the fields
    ``repeating``, which mostly are as in the record before, become columns with a dictionary. ``schema`` is
    the layout of what :meth:`read` gives.
    """

    def __init__(
        self, schema: Schema, *, prefix: int = 5, whole: bool = True, repeating: Collection[str] = ()
    ) -> None:
        self._layout = _Layout(schema, repeating)
        self._schema = schema
        self._written = fastavro.parse_schema(_as_written(schema), _write_hint=False)
        self._branches = {field["name"]: _full_name(field["type"]) for field in _chosen_fields(schema)}
        self._prefix = prefix
        self._whole = whole
        self.schema = pa.schema(list(self._layout.type))
        self._kernel = _kernel(self._layout.plan, prefix, whole=whole)
        self._added: list[bytes] = []
        """What the reference is to read."""

    def read(self, values: list[bytes]) -> pa.RecordBatch:
        """Return records as columns; raises :class:`ColumnsError` where one is none of the schema."""
        self.add(values)
        return self.take()

    def add(self, values: "list[bytes] | list[RowBlock | RecordBlock]") -> None:
        """Read records, after those that were added before, for :meth:`take` to give.

        One of the two raises :class:`ColumnsError` where one is none of the schema, and forgets them all.
        """
        if self._kernel is None:
            self._added += cast("list[bytes]", values)  # blocks are the kernel's
            return
        try:
            self._kernel.add(values)
        except ValueError as error:
            raise ColumnsError(str(error)) from error

    def take(self) -> pa.RecordBatch:
        """Return as columns what was added since the last time."""
        added, self._added = self._added, []
        try:
            if self._kernel is not None:
                array, _ = self._array(self._kernel.take(), 0)
            else:
                array = pa.array(self._read_each(added), arrow_type(self._schema)).cast(self._layout.type)
        except (ValueError, EOFError, IndexError, pa.ArrowException) as error:
            raise ColumnsError(str(error)) from error
        return pa.RecordBatch.from_struct_array(array)

    def _array(self, parts: Sequence[Part], at: int) -> tuple[pa.Array, int]:
        """Put a column together of its parts; give it, and where the next one is."""
        kind, _, _, end = self._layout.plan[at]
        type_ = self._layout.types[at]
        count, nulls, valid, values, offsets, runs = parts[at]
        bits = None if valid is None else pa.py_buffer(valid)
        buffers: list[pa.Buffer | None]
        children = None
        if kind in (_Kind.RECORD, _Kind.ARRAY):
            buffers = [bits] if kind == _Kind.RECORD else [bits, pa.py_buffer(offsets)]
            children, child = [], at + 1
            while child < end:
                array, child = self._array(parts, child)
                children.append(array)
        elif kind == _Kind.BYTES:
            buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(values)]
        elif kind == _Kind.RUNS:
            numbers = pa.Array.from_buffers(pa.int32(), count, [bits, pa.py_buffer(values)], nulls)
            return _of_runs(numbers, pa.py_buffer(offsets), pa.py_buffer(runs)), end
        else:
            buffers = [bits, pa.py_buffer(values)]
        return pa.Array.from_buffers(type_, count, buffers, nulls, children=children), end

    def _read_each(self, values: Sequence[bytes]) -> Iterator[Any]:
        for value in values:
            stream = io.BytesIO(value)
            stream.seek(self._prefix)
            record: Any = fastavro.schemaless_reader(
                stream, self._written, None, return_record_name=True, return_record_name_override=True
            )
            for name, branch in self._branches.items():
                found, record[name] = record[name]
                if found != branch:
                    raise ColumnsError(f"{name} is {found}, not {branch}")
            if self._whole and stream.tell() != len(value):
                raise ColumnsError(f"{len(value) - stream.tell()} bytes follow a record")
            yield record
