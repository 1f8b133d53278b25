# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""Records of Avro into the buffers of Arrow's columns, a batch at a time.

:class:`ColumnReader` is given the layout of a schema as numbers (:mod:`millrace.avro.columnar`, which has the same
ones and the reference) and reads the records one after the other into a growing buffer per column, as Arrow wants
them: values of one size side by side, others one after the other with their offsets, and which of them are null.
Most of a record is as in the one before: fields of which the bytes are the same are counted, and written together
once another value comes; of a text that is expected to repeat, each run is written once, and for each value the
number of its run. Of a block, whose records differ in their images and three numbers alone, the rest is read once.
Memory is read through :c:type:`Source` and written through :c:type:`Output`, but for the record before, and for values
that are written again: what lies there was read or written so.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from millrace.kernel.reading cimport Source, little, read_flag, read_long, skip, source_at, source_of, trailing_zeros
from millrace.kernel.records cimport Record, RecordBlock, look_at
from millrace.kernel.rows cimport WHOLE, BlockRecord, FrameNumbers, RowBlock
from millrace.kernel.writing cimport Output, put, put_byte, room, trim

__all__ = ["Buffer", "ColumnReader"]

cdef enum:
    NO_BRANCH = -1  # the type is no union
    OPTIONAL = -2  # it is a union of null and one other
    MOST_BYTES = 0x7FFFFFFF  # of a column: its offsets have 32 bits
    LEVELS = 64  # of types inside one another
    KEPT = 1 << 16  # bytes of what stands around images

# generated: ColumnKind
cdef enum ColumnKind:
    KIND_LONG = 1
    KIND_INT = 2
    KIND_BOOLEAN = 3
    KIND_FLOAT = 4
    KIND_DOUBLE = 5
    KIND_BYTES = 6
    KIND_DECIMAL = 7
    KIND_RUNS = 8
    KIND_ARRAY = 9
    KIND_RECORD = 10
# end


cdef struct Node:
    int kind
    int branch
    Py_ssize_t width  # bytes of a value, where all have as many
    Py_ssize_t end  # of the nodes inside this one, which follow it
    Py_ssize_t count
    Py_ssize_t nulls
    Py_ssize_t owed  # of the count, those at the end that are null and not written yet
    Py_ssize_t repeats  # of the count, those at the end that are as the one before and not written yet
    int64_t record  # number of the record that was the last to have this
    Py_ssize_t at  # where that has it
    Py_ssize_t size  # how many bytes it takes there
    Output valid  # a byte per value, as far as the last null that is written
    Output values
    Output offsets
    Output runs  # the values of KIND_RUNS, of which ``values`` has the numbers


cdef bint put_offsets(Node* node, Py_ssize_t offset, Py_ssize_t times) noexcept nogil:
    cdef int32_t* into
    cdef Py_ssize_t index
    if offset > MOST_BYTES:
        return False
    into = <int32_t*>room(&node.offsets, 4 * times)
    if into == NULL:
        return False
    for index in range(times):
        into[index] = <int32_t>offset
    return True


cdef inline void owe(Node* node, Py_ssize_t number) noexcept nogil:
    """Count nulls, or inside of them what stands where nothing is."""
    node.count += number
    node.owed += number
    if node.branch == OPTIONAL:
        node.nulls += number


cdef bint put_valid(Node* node, Py_ssize_t until, uint8_t flag) noexcept nogil:
    cdef Py_ssize_t number = until - node.valid.size
    cdef uint8_t* into
    if number == 0:
        return True
    into = room(&node.valid, number)
    if into == NULL:
        return False
    memset(into, flag, number)
    return True


cdef inline bint is_plain(const Node* node) noexcept nogil:
    """Say whether there is nothing inside."""
    return node.kind < KIND_ARRAY


cdef inline void repeat(Node* node) noexcept nogil:
    """Count a value that is as the one before it."""
    if node.owed:
        owe(node, 1)
    else:
        node.count += 1
        node.repeats += 1


cdef void fill(uint8_t* into, Py_ssize_t size, Py_ssize_t times) noexcept nogil:
    """Write what lies in front of ``into``, of ``size`` bytes, so many times more."""
    cdef const uint8_t* data = into - size
    cdef Py_ssize_t done
    cdef Py_ssize_t whole = size * times
    if size == 0:
        return
    # What is written is read again, so that few copies do.
    while whole:
        done = min(into - data, whole)
        memcpy(into, data, done)
        into += done
        whole -= done


cdef bint put_repeats(Node* node) noexcept nogil:
    """Write the values that repeat the last one that is written."""
    cdef Py_ssize_t times = node.repeats
    cdef Py_ssize_t size = node.width
    cdef Py_ssize_t index
    cdef int32_t end
    cdef int32_t* ends
    cdef uint8_t* into
    node.repeats = 0
    if node.kind == KIND_BYTES:
        # Where the last value ends, and as many bytes before, where the one before it does.
        ends = <int32_t*>(node.offsets.data + node.offsets.size) - 2
        end = ends[1]
        size = end - ends[0]
        if end + size * times > MOST_BYTES:
            return False
        ends = <int32_t*>room(&node.offsets, 4 * times)
        if ends == NULL:
            return False
        for index in range(times):
            end += <int32_t>size
            ends[index] = end
    into = room(&node.values, size * times)
    if into == NULL:
        return size == 0
    fill(into, size, times)
    return True


cdef bint settle(Node* nodes, Py_ssize_t index) noexcept nogil:
    """Write the values that repeat, and after them the nulls that are owed; those inside a record are owed in turn."""
    cdef Node* node = &nodes[index]
    cdef Py_ssize_t number = node.owed
    cdef Py_ssize_t child
    cdef uint8_t* into
    if node.repeats and not put_repeats(node):
        return False
    if number == 0:
        return True
    node.owed = 0
    if node.branch == OPTIONAL:
        if not put_valid(node, node.count - number, 1) or not put_valid(node, node.count, 0):
            return False
    if node.kind == KIND_BYTES:
        return put_offsets(node, node.values.size, number)
    if node.kind == KIND_ARRAY:
        return put_offsets(node, nodes[index + 1].count, number)
    if node.kind == KIND_RECORD:
        child = index + 1
        while child < node.end:
            owe(&nodes[child], number)
            child = nodes[child].end
        return True
    into = room(&node.values, node.width * number)
    if into == NULL:
        return False
    memset(into, 0, node.width * number)
    return True


cdef bint read_decimal(Node* node, Source* source) noexcept nogil:
    """Read a number in two's complement, its first byte the highest, and write it the other way round."""
    cdef int64_t size = read_long(source)
    cdef Py_ssize_t at = skip(source, size)
    cdef Py_ssize_t index
    cdef uint8_t* into
    if source.bad or size > node.width or size == 0:
        return False
    into = room(&node.values, node.width)
    if into == NULL:
        return False
    memset(into, 255 if source.data[at] > 127 else 0, node.width)
    for index in range(size):
        into[size - 1 - index] = source.data[at + index]
    return True


cdef inline bint read_bytes(Node* node, Output* into, Source* source) noexcept nogil:
    """Read bytes, or a string, into one of the node's outputs, and write where they end there."""
    cdef int64_t size = read_long(source)
    cdef Py_ssize_t at = skip(source, size)
    return not source.bad and put(into, source.data + at, size) == 0 and put_offsets(node, into.size, 1)


cdef bint read_items(Node* nodes, Py_ssize_t index, Source* source, int level) noexcept nogil:
    cdef int64_t number = read_long(source)
    cdef int64_t item
    while number != 0 and not source.bad:
        if number < 0:
            number = -number
            read_long(source)
        # An item takes a byte at the least.
        if number < 0 or number > source.end - source.at:
            return False
        for item in range(number):
            if not read_value(nodes, index + 1, source, NULL, 0, level + 1):
                return False
        number = read_long(source)
    return not source.bad and put_offsets(&nodes[index], nodes[index + 1].count, 1)


cdef inline Py_ssize_t same_bytes(const uint8_t* one, const uint8_t* other, Py_ssize_t size) noexcept nogil:
    """Count the bytes at the beginning that are the same."""
    cdef Py_ssize_t at = 0
    cdef uint64_t differing
    while size - at >= 8:
        differing = little(one + at, 8) ^ little(other + at, 8)
        if differing:
            return at + (trailing_zeros(differing) >> 3)
        at += 8
    while at < size and one[at] == other[at]:
        at += 1
    return at


cdef Py_ssize_t repeat_fields(Node* nodes, Py_ssize_t child, Py_ssize_t end, Source* source, const Source* last,
                              int64_t record) noexcept nogil:
    """Step over the fields from ``child`` on that are as in the record before; give the first that is not."""
    cdef Node* node = &nodes[child]
    cdef Py_ssize_t begin = node.at
    cdef Py_ssize_t shift = source.at - begin
    cdef Py_ssize_t same = begin + same_bytes(
        source.data + source.at, last.data + begin, min(source.end - source.at, last.end - begin)
    )
    while child < end and is_plain(node) and node.record == record - 1 and node.at + node.size <= same:
        repeat(node)
        node.record = record
        node.at += shift
        source.at = node.at + node.size
        child += 1
        node = &nodes[child]
    return child


cdef bint read_fields(Node* nodes, Py_ssize_t child, Py_ssize_t end, Source* source, const Source* last,
                      int64_t record, int level) noexcept nogil:
    """Read the fields of a record from ``child`` to before ``end``."""
    cdef Py_ssize_t begin
    cdef Node* node
    while child < end:
        node = &nodes[child]
        if last != NULL and node.record == record - 1 and is_plain(node):
            child = repeat_fields(nodes, child, end, source, last, record)
            if child == end:
                break
            node = &nodes[child]
        begin = source.at
        if not read_value(nodes, child, source, last, record, level + 1):
            return False
        node.record, node.at, node.size = record, begin, source.at - begin
        child = node.end
    return True


cdef bint read_value(Node* nodes, Py_ssize_t index, Source* source, const Source* last, int64_t record,
                     int level) noexcept nogil:
    """Read a value of the type at ``index``; false for what is malformed, or does not fit.

    It stands in the record of this number; ``last`` is the one before it, NULL where that is not to be compared.
    """
    cdef Node* node = &nodes[index]
    cdef int64_t number
    cdef int32_t small
    cdef Py_ssize_t at
    if node.branch != NO_BRANCH:
        number = read_long(source)
        if node.branch >= 0:
            if number != node.branch:
                return False
        elif number == 0:
            owe(node, 1)
            return not source.bad
        elif number != 1:
            return False
    if (node.owed or node.repeats) and not settle(nodes, index):
        return False
    node.count += 1
    if node.kind == KIND_LONG:
        number = read_long(source)
        return not source.bad and put(&node.values, <const uint8_t*>&number, 8) == 0
    elif node.kind == KIND_INT:
        number = read_long(source)
        small = <int32_t>number
        return not source.bad and small == number and put(&node.values, <const uint8_t*>&small, 4) == 0
    elif node.kind == KIND_BOOLEAN:
        small = read_flag(source)
        return not source.bad and put_byte(&node.values, <uint8_t>small) == 0
    elif node.kind == KIND_FLOAT or node.kind == KIND_DOUBLE:
        at = skip(source, node.width)
        return not source.bad and put(&node.values, source.data + at, node.width) == 0
    elif node.kind == KIND_BYTES:
        return read_bytes(node, &node.values, source)
    elif node.kind == KIND_RUNS:
        small = <int32_t>(node.offsets.size // 4 - 1)
        return read_bytes(node, &node.runs, source) and put(&node.values, <const uint8_t*>&small, 4) == 0
    elif node.kind == KIND_DECIMAL:
        return read_decimal(node, source)
    elif level >= LEVELS:
        return False
    elif node.kind == KIND_ARRAY:
        return read_items(nodes, index, source, level)
    return read_fields(nodes, index + 1, node.end, source, last, record, level)


cdef bint may_repeat(const Node* nodes, Py_ssize_t child, Py_ssize_t end) noexcept nogil:
    """Say whether the fields have no array that is not null."""
    while child < end:
        if not nodes[child].owed and (nodes[child].kind == KIND_ARRAY or (
            nodes[child].kind == KIND_RECORD and not may_repeat(nodes, child + 1, nodes[child].end)
        )):
            return False
        child = nodes[child].end
    return True


cdef bint put_numbers(Node* node, int64_t first, Py_ssize_t times) noexcept nogil:
    cdef Py_ssize_t index
    cdef int64_t last = first + times - 1
    cdef uint8_t* into
    if node.kind == KIND_LONG:
        into = room(&node.values, 8 * times)
        if into == NULL:
            return False
        for index in range(times):
            (<int64_t*>into)[index] = first + index
    elif node.kind == KIND_INT and last == <int32_t>last:
        into = room(&node.values, 4 * times)
        if into == NULL:
            return False
        for index in range(times):
            (<int32_t*>into)[index] = <int32_t>(first + index)
    else:
        return False
    node.count += times
    return True


cdef bint read_again(Node* nodes, Py_ssize_t child, Py_ssize_t end, Py_ssize_t times,
                     const FrameNumbers* numbers) noexcept nogil:
    """Count fields that were read last so many times more; the ``numbers`` among them, by their place, go up."""
    cdef Node* node
    cdef int index
    while child < end:
        node = &nodes[child]
        if node.owed:
            owe(node, times)
        elif node.kind == KIND_RECORD:
            node.count += times
            if not read_again(nodes, child + 1, node.end, times, numbers):
                return False
        else:
            for index in range(3):
                if node.at == numbers.at[index]:
                    if not put_numbers(node, numbers.value[index] + 1, times):
                        return False
                    break
            else:
                node.count += times
                node.repeats += times
        child = node.end
    return True


cdef bytes bits_of(const Output* flags):
    """Pack a byte per value into a bit."""
    cdef Py_ssize_t size = flags.size
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, (size + 7) // 8)
    cdef uint8_t* into = <uint8_t*>PyBytes_AS_STRING(packed)
    cdef Py_ssize_t index
    memset(into, 0, (size + 7) // 8)
    for index in range(size):
        into[index >> 3] |= (flags.data[index] & 1) << (index & 7)
    return packed


cdef class Buffer:
    """Memory that was written, to be read through Python's buffer protocol."""

    cdef uint8_t* data
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, True, flags)


cdef object taken(Output* output):
    """Return what was written, and begin again with as much memory."""
    cdef Buffer found
    if output.size == 0:
        return b""
    found = Buffer.__new__(Buffer)
    found.data, found.size = output.data, output.size
    output.data = NULL
    output.size = output.capacity = 0
    if room(output, found.size) != NULL:
        output.size = 0
    return found


cdef class ColumnReader:
    """Reads records of one schema.

    ``plan`` has a kind, a branch, a width and the end of what is inside for each type, the record's own first
    and what is inside of one after it. Each record has ``prefix`` bytes in front.
    """

    cdef Node* nodes
    cdef Py_ssize_t size
    cdef Py_ssize_t prefix
    cdef bint whole
    cdef int64_t number  # of the last record
    cdef Py_ssize_t rest  # the first node after the images, where the records are of rows
    cdef Output frame  # that was read last; and a former one
    cdef Output last_frame

    def __cinit__(self, list plan not None, Py_ssize_t prefix, bint whole):
        cdef Py_ssize_t index
        cdef Node* node
        self.nodes = NULL
        self.size = 0
        self.prefix = prefix
        self.whole = whole
        self.nodes = <Node*>calloc(len(plan) + 1, sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError
        self.size = len(plan)
        for index in range(self.size):
            node = &self.nodes[index]
            node.kind, node.branch, node.width, node.end = plan[index]
            if node.end <= index or node.end > self.size or (node.kind == KIND_ARRAY and node.end == index + 1):
                raise ValueError("a plan whose parts do not lie inside one another")
        self.rest = 0
        if self.size > 2 and self.nodes[1].end < self.size:
            self.rest = self.nodes[self.nodes[1].end].end
        if self.size == 0 or self.nodes[0].kind != KIND_RECORD or self.nodes[0].branch != NO_BRANCH:
            raise ValueError("a plan that is not that of a record")
        self._clear()

    def __dealloc__(self):
        cdef Py_ssize_t index
        for index in range(self.size):
            free(self.nodes[index].valid.data)
            free(self.nodes[index].values.data)
            free(self.nodes[index].offsets.data)
            free(self.nodes[index].runs.data)
        free(self.nodes)
        free(self.frame.data)
        free(self.last_frame.data)

    cdef int _clear(self) except -1:
        cdef Py_ssize_t index
        cdef Node* node
        trim(&self.frame, KEPT)
        trim(&self.last_frame, KEPT)
        for index in range(self.size):
            node = &self.nodes[index]
            node.count = node.nulls = node.owed = node.repeats = 0
            node.record = -1
            node.valid.size = node.values.size = node.offsets.size = node.runs.size = 0
            if node.kind in (KIND_BYTES, KIND_RUNS, KIND_ARRAY) and not put_offsets(node, 0, 1):
                raise MemoryError
        return 0

    def add(self, list values not None):
        """Read records, or those of blocks, after those that were read before.

        Raises ValueError for what is no record of the schema, and forgets all of them then.
        """
        cdef Source source, last
        cdef object value
        cdef bint has_last = False
        cdef Py_ssize_t index
        try:
            for index in range(len(values)):
                value = values[index]
                if isinstance(value, RowBlock):
                    self._read_block(<RowBlock>value)
                    has_last = False
                    continue
                if isinstance(value, RecordBlock):
                    self._read_records(<RecordBlock>value)
                    has_last = False
                    continue
                if not PyBytes_CheckExact(value):
                    raise ValueError(f"record {index} is not bytes")
                source = source_of(value, 0, PyBytes_GET_SIZE(value))
                self._read(index, &source, &last if has_last else NULL)
                last, has_last = source, True
        except BaseException:
            self._clear()
            raise

    cdef int _read_records(self, RecordBlock block) except -1:
        cdef Record record
        cdef Source last
        cdef Py_ssize_t index
        for index in range(block.count()):
            if not look_at(block, index, &record):
                raise ValueError(f"record {index} has no value, or headers")
            self._read(index, &record.value, &last if index else NULL)
            last = record.value
        return 0

    cdef int _read_block(self, RowBlock block) except -1:
        cdef Source source
        cdef Source last  # images of the record before
        cdef const BlockRecord* record
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t place, index, end
        cdef Py_ssize_t first  # of the records at hand, which have the same frame
        cdef int kind
        cdef bint has_last = False
        self.frame.size = 0
        for place in range(-1, block.event_count()):
            first = 0 if place < 0 else block.event(place).first
            end = block.end_of_event(place)
            kind = WHOLE
            for index in range(first, end):
                record = block.record(index)
                source = source_at(block.images.data + start, record.end - start)
                start = record.end
                if record.kind != kind:
                    if kind != WHOLE:
                        self._read_frame(block, place, first, index)
                    first, kind = index, record.kind
                if kind == WHOLE:
                    self._read(index, &source, NULL)
                    has_last, self.frame.size = False, 0
                    continue
                self.number += 1
                self.nodes[0].count += 1
                if not read_fields(self.nodes, 1, self.rest, &source, &last if has_last else NULL, self.number, 0) or \
                        source.at != source.end:
                    raise ValueError(f"record {index} is none of this schema, or a column takes 2 GiB")
                last, has_last = source, True
            if kind != WHOLE:
                self._read_frame(block, place, first, end)
        return 0

    cdef int _read_frame(self, RowBlock block, Py_ssize_t place, Py_ssize_t first, Py_ssize_t end) except -1:
        """Read what records of an event from ``first`` on have after their images: that of one kind.

        Where it is one record after one, it is compared with the frame of that.
        """
        cdef FrameNumbers numbers
        cdef Source source, last
        cdef Output frame = self.last_frame
        self.last_frame, self.frame = self.frame, frame
        last = source_at(self.last_frame.data, self.last_frame.size)
        while first < end:
            self.frame.size = 0
            if block.put_frame(&self.frame, block.event(place), first, &numbers):
                raise MemoryError
            source = source_at(self.frame.data, self.frame.size)
            if not read_fields(self.nodes, self.rest, self.size, &source, &last if last.end else NULL, self.number, 0) or \
                    source.at != source.end:
                raise ValueError(f"record {first} is none of this schema, or a column takes 2 GiB")
            first += 1
            if first < end and may_repeat(self.nodes, self.rest, self.size):
                if not read_again(self.nodes, self.rest, self.size, end - first, &numbers):
                    raise ValueError(f"record {first} is none of this schema, or memory is short")
                self.frame.size = 0  # it is that of the first of them
                return 0
        return 0

    cdef int _read(self, Py_ssize_t index, Source* source, const Source* last) except -1:
        """Read a record, after ``last`` unless that is NULL."""
        self.number += 1
        skip(source, self.prefix)
        if source.bad or not read_value(self.nodes, 0, source, last, self.number, 0) or \
                (self.whole and source.at != source.end):
            raise ValueError(f"record {index} is none of this schema, or a column takes 2 GiB")
        return 0

    def take(self):
        """Return for each type its count and nulls, which are valid, its values, offsets and runs; and begin again.

        Raises ValueError as :meth:`add` does.
        """
        cdef Py_ssize_t index
        cdef Node* node
        found = []
        try:
            for index in range(self.size):
                node = &self.nodes[index]
                if (node.owed or node.repeats) and not settle(self.nodes, index):
                    raise ValueError("a column takes 2 GiB, or memory is short")
                if node.nulls and not put_valid(node, node.count, 1):
                    raise MemoryError
                found.append(
                    (
                        node.count,
                        node.nulls,
                        bits_of(&node.valid) if node.nulls else None,
                        bits_of(&node.values) if node.kind == KIND_BOOLEAN else taken(&node.values),
                        taken(&node.offsets),
                        taken(&node.runs),
                    )
                )
            return found
        finally:
            self._clear()
