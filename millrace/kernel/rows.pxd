# cython: language_level=3
"""What other modules of the kernel use of :mod:`millrace.kernel.rows`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from millrace.kernel.reading cimport Source
from millrace.kernel.writing cimport Output


cdef struct Plan:
    int kind
    int length_bytes  # size of the length in front of a value; 0 where all have one size
    Py_ssize_t size  # of a value, where it is fixed
    Py_ssize_t a
    Py_ssize_t b
    Py_ssize_t first_text  # the column's texts are those from here on
    Py_ssize_t texts  # their number


cdef struct Side:
    bint exists
    Py_ssize_t null_size
    uint8_t* present  # for each column of the table, whether the image has it
    Py_ssize_t* start  # for each, and the end: where in the output its value begins


cdef struct Texts:
    Output pool
    Py_ssize_t* start  # where each text begins in the pool, and where the last ends


cdef struct Piece:
    const uint8_t* data
    Py_ssize_t size


cdef struct Frame:
    Piece start
    Piece end
    Piece missing


cdef struct Document:
    # A JSON document, and what is left of the values and bytes that an honest one of its size has.
    const uint8_t* data
    bint whole_doubles  # whether a double without a fraction is written as an integer is
    Py_ssize_t values_left
    Py_ssize_t bytes_left


cdef inline Piece piece_of(bytes data) except *:
    """Point into ``data``, which the caller holds for as long as the piece is used."""
    cdef Piece piece
    if data is None:
        raise TypeError("bytes are missing")
    piece.data = <const uint8_t*>PyBytes_AS_STRING(data)
    piece.size = PyBytes_GET_SIZE(data)
    return piece


cdef bint is_utf8(const uint8_t* data, Py_ssize_t size, uint8_t highest) noexcept nogil
cdef Py_ssize_t decimal_digits(uint8_t* text, const uint8_t* data, Py_ssize_t size, Py_ssize_t precision, Py_ssize_t scale) noexcept nogil
cdef int put_json_string(Output* out, const uint8_t* data, Py_ssize_t size) noexcept nogil
cdef int put_json(Output* out, Document* document, int kind, int64_t start, int64_t end, int depth) noexcept


cdef enum:
    MOST_FRAMES = 3
    WHOLE = 3  # in place of the number of a frame: of a record that has its own


cdef struct BlockRecord:
    Py_ssize_t end  # of its images, or of all of it
    int kind  # the number of its frame, or WHOLE


cdef struct BlockFrame:
    # Where a frame lies among all, how many bytes are in front of the row's number, between it and the orders, after.
    Py_ssize_t at
    Py_ssize_t start
    Py_ssize_t end
    Py_ssize_t missing


cdef struct BlockEvent:
    # An event of which records are in a block: the first of them, its orders, and what they have in common.
    Py_ssize_t first
    int64_t timestamp
    int64_t total_order
    int64_t collection_order
    BlockFrame[MOST_FRAMES] frames


cdef struct BlockSizes:
    # How much of its memory a block uses.
    Py_ssize_t images
    Py_ssize_t records
    Py_ssize_t events
    Py_ssize_t texts
    Py_ssize_t size


cdef struct FrameNumbers:
    # What the rows that follow have one more of: where it lies in a frame, and its value.
    Py_ssize_t[3] at
    int64_t[3] value


cdef class RowBlock:
    cdef Output images
    cdef Output records  # a BlockRecord for each
    cdef Output events  # a BlockEvent for each
    cdef Output texts  # of the frames
    cdef bytes record_prefix
    cdef int64_t timestamp
    cdef BlockSizes kept
    cdef readonly Py_ssize_t size
    cdef readonly bytes prefix

    cdef Py_ssize_t count(self) noexcept
    cdef const BlockRecord* record(self, Py_ssize_t index) noexcept
    cdef Py_ssize_t event_count(self) noexcept
    cdef const BlockEvent* event(self, Py_ssize_t index) noexcept
    cdef Py_ssize_t end_of_event(self, Py_ssize_t index) noexcept
    cdef Py_ssize_t count_of_event(self) noexcept
    cdef BlockSizes sizes(self) noexcept
    cdef void keep(self) noexcept
    cdef void revert(self) noexcept
    cdef bint is_kept(self) noexcept
    cdef int begin(self, bytes record_prefix, const Frame* frames, int count, int64_t total_order,
                   int64_t collection_order, int64_t timestamp) except -1
    cdef uint8_t* room(self, Py_ssize_t size, int kind, Py_ssize_t whole) noexcept
    cdef void drop(self, Py_ssize_t whole) noexcept
    cdef int put_frame(self, Output* out, const BlockEvent* event, Py_ssize_t index, FrameNumbers* numbers) noexcept


cdef class RowsKernel:
    cdef Plan* plans
    cdef Py_ssize_t columns
    cdef Texts texts
    cdef Side before
    cdef Side after
    cdef Output out
    cdef Output scratch  # the text of a JSON document
    cdef list converters
    cdef Py_ssize_t* key_ordinals
    cdef uint8_t* key_branches
    cdef Py_ssize_t key_parts
    cdef bint has_key
    cdef bytes key_prefix
    cdef bytes value_prefix
    cdef Py_ssize_t record_limit
    cdef bint busy
    cdef bint has_two_sides
    cdef Py_ssize_t written  # bytes of the values that the last call made
    cdef object stamp
    cdef RowBlock block  # where records go, or to a list
    cdef list records

    cdef bint write_rows(self, const uint8_t* rows, Py_ssize_t size, records, const Frame* frames,
                         int64_t total_order, int64_t collection_order, slowly, stamp) except -1
    cdef int _use_side(self, Side* side, present) except -1
    cdef bint _write(self, const uint8_t* rows, Py_ssize_t size, const Frame* frames, int64_t total_order,
                     int64_t collection_order, slowly) except -1
    cdef int _image(self, Side* side, Source* cursor) except -1
    cdef int _convert(self, Py_ssize_t ordinal, const uint8_t* data, Py_ssize_t size) except -1
    cdef int _json(self, Py_ssize_t ordinal, const uint8_t* data, Py_ssize_t size) except -1
    cdef int _one_sided(self, const Frame* frames, int64_t total_order, int64_t collection_order) except -1
    cdef int _update(self, const Frame* frames, int64_t total_order, int64_t collection_order) except -1
    cdef Side* _side_of_key(self, Py_ssize_t ordinal, Side* side, Side* other) noexcept
    cdef bint _has_whole_key(self, Side* side, Side* other) noexcept
    cdef bint _has_same_key(self) noexcept
    cdef _key(self, Side* side, Side* other)
    cdef int _record(self, const Frame* frames, int kind, bint has_before, bint has_after, key, int64_t total_order,
                     int64_t collection_order) except -1
