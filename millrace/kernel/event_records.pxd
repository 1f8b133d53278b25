# cython: language_level=3
"""How Avro has a field of an event: see :class:`millrace.avro.plans.FieldKind`; and the places of some fields."""


# generated: FieldKind
cdef enum FieldKind:
    KIND_LONG = 1
    KIND_UINT64 = 2
    KIND_BYTES = 3
    KIND_STRING = 4
    KIND_OTHER = 5
    KIND_OPTIONAL = 16
# end


# generated: RowsField
cdef enum RowsField:
    ROWS_TABLE_ID = 0
    ROWS_FLAGS = 1
    ROWS_EXTRA_ROW_INFO = 2
    ROWS_COLUMN_COUNT = 3
    ROWS_COLUMNS_BEFORE_IMAGE = 4
    ROWS_COLUMNS_AFTER_IMAGE = 5
    ROWS_ROWS = 6
# end
