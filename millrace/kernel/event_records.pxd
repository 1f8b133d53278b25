# cython: language_level=3
"""Records of the events topic: their head, and how Avro has a field of an event."""

from libc.stdint cimport int64_t

from millrace.kernel.reading cimport (
    Source,
    Span,
    expect,
    read_flag,
    read_long,
    read_nullable_span,
    read_span,
)

cdef enum:
    CHECKSUM_LENGTH = 4


# See millrace.avro.plans.FieldKind.
# generated: FieldKind
cdef enum FieldKind:
    KIND_LONG = 1
    KIND_UINT64 = 2
    KIND_BYTES = 3
    KIND_STRING = 4
    KIND_OTHER = 5
    KIND_OPTIONAL = 16
# end


# The places of the fields of rows events.
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


cdef struct Head:
    # See HEAD in millrace.avro.events.schema, whose order this is. Names are where they stand in the record; what is
    # null has a size below 0.
    Span log_file
    int64_t position
    int64_t sub_index
    int64_t timestamp
    int64_t type_code
    int64_t server_id
    int64_t event_size
    int64_t next_position
    int64_t flags
    Span checksum
    bint artificial
    int64_t epoch
    Span transaction
    int64_t ordinal
    bint begins
    Span ends
    Span xid
    Span database
    Span table
    Py_ssize_t event  # where it begins


cdef inline void read_head(Source* source, Head* head) noexcept nogil:
    # Bad where it has extra headers, or an extra post-header: such a record is for the reference.
    head.log_file = read_span(source)
    head.position = read_long(source)
    head.sub_index = read_long(source)
    read_span(source)  # the type's name
    head.timestamp = read_long(source)
    head.type_code = read_long(source)
    head.server_id = read_long(source)
    head.event_size = read_long(source)
    head.next_position = read_long(source)
    head.flags = read_long(source)
    expect(source, read_long(source), 0)  # extra_headers
    head.checksum = read_nullable_span(source)
    if head.checksum.size >= 0:
        expect(source, head.checksum.size, CHECKSUM_LENGTH)
    head.artificial = read_flag(source)
    expect(source, read_long(source), 0)  # post_header_extra
    head.epoch = read_long(source)
    head.transaction = read_nullable_span(source)
    head.ordinal = read_long(source)
    head.begins = read_flag(source)
    head.ends = read_nullable_span(source)
    head.xid = read_nullable_span(source)
    head.database = read_nullable_span(source)
    head.table = read_nullable_span(source)
    head.event = source.at


cdef inline int remember(dict known, bytes key, made, Py_ssize_t most, Py_ssize_t largest) except -1:
    # Keep what was made of some bytes: so many things, each of so many bytes at most.
    if len(key) <= largest:
        if len(known) >= most:
            known.clear()
        known[key] = made
    return 0
