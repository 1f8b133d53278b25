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
from millrace.kernel.writing cimport Output, Text, put_byte, put_long, put_nullable_text, put_text

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


# What stands in front of the event: as it is read, where names are where they stand in the record, and what is null
# has a size below 0; and as it is written.
# generated: Head
cdef struct Head:
    Span log_file
    int64_t position
    int64_t sub_index
    Span type
    int64_t timestamp
    int64_t type_code
    int64_t server_id
    int64_t event_size
    int64_t next_position
    int64_t flags
    Span extra_headers
    Span checksum
    bint artificial
    Span post_header_extra
    int64_t epoch
    Span transaction
    int64_t ordinal
    bint begins
    Span ends
    Span xid
    Span database
    Span table
    Py_ssize_t event  # where it begins


cdef struct NewHead:
    Text log_file
    int64_t position
    int64_t sub_index
    Text type
    int64_t timestamp
    int64_t type_code
    int64_t server_id
    int64_t event_size
    int64_t next_position
    int64_t flags
    Text extra_headers
    Text checksum
    bint artificial
    Text post_header_extra
    int64_t epoch
    Text transaction
    int64_t ordinal
    bint begins
    Text ends
    Text xid
    Text database
    Text table


cdef inline void read_head(Source* source, Head* head) noexcept nogil:
    head.log_file = read_span(source)
    head.position = read_long(source)
    head.sub_index = read_long(source)
    head.type = read_span(source)
    head.timestamp = read_long(source)
    head.type_code = read_long(source)
    head.server_id = read_long(source)
    head.event_size = read_long(source)
    head.next_position = read_long(source)
    head.flags = read_long(source)
    head.extra_headers = read_span(source)
    head.checksum = read_nullable_span(source)
    head.artificial = read_flag(source)
    head.post_header_extra = read_span(source)
    head.epoch = read_long(source)
    head.transaction = read_nullable_span(source)
    head.ordinal = read_long(source)
    head.begins = read_flag(source)
    head.ends = read_nullable_span(source)
    head.xid = read_nullable_span(source)
    head.database = read_nullable_span(source)
    head.table = read_nullable_span(source)
    head.event = source.at


cdef inline void put_head(Output* out, const NewHead* head) noexcept nogil:
    put_text(out, head.log_file)
    put_long(out, head.position)
    put_long(out, head.sub_index)
    put_text(out, head.type)
    put_long(out, head.timestamp)
    put_long(out, head.type_code)
    put_long(out, head.server_id)
    put_long(out, head.event_size)
    put_long(out, head.next_position)
    put_long(out, head.flags)
    put_text(out, head.extra_headers)
    put_nullable_text(out, head.checksum)
    put_byte(out, head.artificial)
    put_text(out, head.post_header_extra)
    put_long(out, head.epoch)
    put_nullable_text(out, head.transaction)
    put_long(out, head.ordinal)
    put_byte(out, head.begins)
    put_nullable_text(out, head.ends)
    put_nullable_text(out, head.xid)
    put_nullable_text(out, head.database)
    put_nullable_text(out, head.table)
# end


cdef inline void read_plain_head(Source* source, Head* head) noexcept nogil:
    # Bad where it has extra headers, or an extra post-header: such a record is for the reference.
    read_head(source, head)
    expect(source, head.extra_headers.size, 0)
    expect(source, head.post_header_extra.size, 0)
    if head.checksum.size >= 0:
        expect(source, head.checksum.size, CHECKSUM_LENGTH)


cdef inline int remember(dict known, bytes key, made, Py_ssize_t most, Py_ssize_t largest) except -1:
    # Keep what was made of some bytes: so many things, each of so many bytes at most.
    if len(key) <= largest:
        if len(known) >= most:
            known.clear()
        known[key] = made
    return 0
