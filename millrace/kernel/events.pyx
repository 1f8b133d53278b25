"""Events, compiled: from the bytes of an event to the value of its record in ``{source}.events``, and back.

:class:`EventRecordWriter` does in one go what decode_event, TransactionTracker and EventSerializer do one after the
other, for the events of which logs consist; :class:`HeadReader` reads records as EventDeserializer does, the
head at once and the event when it is asked for. Both are driven by plans that :mod:`millrace.avro.plans` makes
of the declarations. :class:`RawTaker` makes the reader's records of events that it need not look into.

The reference is the authority: what is rare, unknown or damaged, and whatever raises there, is not done here.
``take`` stops in front of such an event, before anything of it is noted; a head is read by the reference. So
errors are the reference's as well.

Memory is read through :c:type:`Source` and written through :c:type:`Sink` alone, whose functions check every
access; no pointer outlives the call that took it from its object.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from millrace.kernel.reading cimport (
    Source,
    expect,
    is_ascii,
    read_branch,
    read_flag,
    read_lenenc,
    read_long,
    read_uint,
    skip,
    slice_of,
    source_of,
)

from struct import error as StructError
from zlib import crc32

from millrace.binlog.errors import BinlogError
from millrace.binlog.grammar import TRANSITIONS, Effect, Mode, Role
from millrace.binlog.transaction import CONTROL_HEADS, STATEMENT_ROLES

__all__ = ["EventHead", "EventRecordWriter", "HeadReader", "RawTaker", "RecordReader"]

cdef enum:
    HEADER_LENGTH = 19
    CHECKSUM_LENGTH = 4
    MOST_FIELDS = 48
    MOST_VARIABLES = 64
    NAME_LIMIT = 512
    # How much is remembered: so many names, so many larger things, each of so many bytes at most.
    REMEMBERED = 4096
    REMEMBERED_LARGE = 1024
    REMEMBERED_SIZE = 8192

    MINUS = 45
    COLON = 58

    # Of a record that is read: millrace.stage.Record.
    TIMESTAMP = 1
    KEY = 2
    VALUE = 3
    HEADERS = 4

cdef object CRC32_RESIDUE = 0x2144DF1C
cdef const char* DIGITS = b"0123456789abcdef"

# What plans are made of: see millrace.avro.plans, which has the same numbers.
cdef enum Layout:
    LAYOUT_NONE = 0
    LAYOUT_FIELDS = 1
    LAYOUT_GTID = 2
    LAYOUT_MARIADB_GTID = 3
    LAYOUT_QUERY = 4
    LAYOUT_TABLE_MAP = 5
    LAYOUT_ROWS = 6

cdef enum Wire:
    # 1 to 8: an unsigned integer of as many bytes.
    WIRE_INT32 = 9
    WIRE_INT64 = 10
    WIRE_REST_BYTES = 11
    WIRE_REST_TEXT = 12
    WIRE_TEXT8 = 13
    WIRE_TEXT8_NUL = 14
    WIRE_LENENC = 15
    WIRE_BYTES16 = 16
    WIRE_UNLESS_ZERO = 17
    WIRE_ALWAYS_TWO = 18
    WIRE_ZERO = 19
    WIRE_STATUS = 20
    WIRE_LEFT = 21

cdef enum Condition:
    CONDITION_OPTIONAL = 1
    CONDITION_HIDDEN = 2
    CONDITION_ABSENT = 4
    CONDITION_WHEN = 8
    CONDITION_REMAINS = 16
    CONDITION_SIZED = 32

cdef enum Kind:
    KIND_LONG = 1
    KIND_UINT64 = 2
    KIND_BYTES = 3
    KIND_TEXT = 4
    KIND_OTHER = 5
    KIND_OPTIONAL = 16

cdef enum End:
    END_NONE = 0
    END_COMMIT = 1
    END_ROLLBACK = 2


# ------------------------------------------------------------------------------------------- the grammar

# As millrace.binlog.grammar has it: the roles that are looked into, the modes, the effects, the table.
cdef int ROLE_PART = Role.PART
cdef int ROLE_GTID = Role.GTID
cdef int ROLE_GROUP_GTID = Role.GROUP_GTID
cdef int ROLE_QUERY = Role.QUERY
cdef int ROLE_SETTING = Role.SETTING
cdef int ROLE_SINGLE = Role.SINGLE
cdef int ROLE_ROLLBACK = Role.ROLLBACK
cdef int MODES = len(Mode)
cdef int MODE_NONE = Mode.NONE
cdef int MODE_MASK = max(Mode)
cdef int COUNTS = Effect.COUNTS
cdef int OPENS = Effect.OPENS
cdef int ENDS = Effect.ENDS
cdef int CHANGES = Effect.OPENS | Effect.ENDS | Effect.CUTS
cdef bytes TABLE = TRANSITIONS
cdef bytes HEADS = b"".join(CONTROL_HEADS)
cdef list STATEMENTS = [(text, int(role)) for text, role in STATEMENT_ROLES.items()]


cdef inline int transition(int role, int mode) noexcept:
    """Give the effect of a role in a mode, and the mode that follows; nothing for what is neither."""
    cdef int place = role * MODES + mode
    if role < 0 or not 0 <= mode < MODES or place >= PyBytes_GET_SIZE(TABLE):
        return 0
    return <uint8_t> PyBytes_AS_STRING(TABLE)[place]


cdef int role_of_query(Source* source, int known) except -2:
    """Tell the role of a QUERY, from its post-header on; -1 where the reference must look at its text."""
    cdef Py_ssize_t size, at, index
    cdef uint8_t first, second
    skip(source, 8)
    size = <Py_ssize_t> read_uint(source, 1) + 1
    skip(source, 2)
    if known > 11:
        size += <Py_ssize_t> read_uint(source, 2)
    skip(source, size)
    size = source.end - source.at
    at = skip(source, size)
    if source.bad or size < 2:
        return -1
    for text, role in STATEMENTS:
        if size == PyBytes_GET_SIZE(<bytes> text) and \
                memcmp(source.data + at, PyBytes_AS_STRING(<bytes> text), size) == 0:
            return role
    first, second = source.data[at] & 0xDF, source.data[at + 1] & 0xDF
    if not 65 <= first <= 90:
        return -1
    for index in range(0, PyBytes_GET_SIZE(HEADS), 2):
        if first == <uint8_t> HEADS[index] and second == <uint8_t> HEADS[index + 1]:
            return -1
    return ROLE_SINGLE


# ------------------------------------------------------------------------------------ memory, with its bounds

cdef struct Sink:
    # A buffer that grows. ``bad`` is set where memory is short; what is written then is left out.
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity
    bint bad


cdef bint grow(Sink* sink, Py_ssize_t more) noexcept:
    cdef Py_ssize_t capacity = 2 * sink.capacity + more + 1024
    cdef uint8_t* data = <uint8_t*> PyMem_Realloc(sink.data, capacity)
    if data is NULL:
        sink.bad = True
        return False
    sink.data, sink.capacity = data, capacity
    return True


cdef inline bint room(Sink* sink, Py_ssize_t more) noexcept:
    return sink.capacity - sink.size >= more or grow(sink, more)


cdef inline void put_byte(Sink* sink, uint8_t byte) noexcept:
    if room(sink, 1):
        sink.data[sink.size] = byte
        sink.size += 1


cdef inline void put_long(Sink* sink, int64_t value) noexcept:
    cdef uint64_t number = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    if not room(sink, 10):
        return
    while number > 127:
        sink.data[sink.size] = <uint8_t> (number & 127 | 128)
        sink.size += 1
        number >>= 7
    sink.data[sink.size] = <uint8_t> number
    sink.size += 1


cdef inline void put_bytes(Sink* sink, bytes data) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if room(sink, size):
        memcpy(sink.data + sink.size, PyBytes_AS_STRING(data), size)
        sink.size += size


cdef inline void put_slice(Sink* sink, const Source* source, Py_ssize_t at, Py_ssize_t size) noexcept:
    # Bytes of the source, without their size.
    if at < 0 or size < 0 or source.bad or size > source.end - at:
        sink.bad = True
    elif room(sink, size):
        memcpy(sink.data + sink.size, source.data + at, size)
        sink.size += size


cdef inline void put_sized(Sink* sink, const Source* source, Py_ssize_t at, Py_ssize_t size) noexcept:
    put_long(sink, size)
    put_slice(sink, source, at, size)


# ------------------------------------------------------------------------------------------ writing records

cdef struct Field:
    # See millrace.avro.plans.FieldPlan.
    uint8_t wire
    uint8_t condition
    uint8_t place
    uint64_t mask
    uint64_t drop


cdef struct Plan:
    int layout
    int role
    int known  # length of the post-header
    int version  # of rows events; how wide a table id is
    int before
    int after
    int count
    Field fields[MOST_FIELDS]


cdef struct Variable:
    # A status variable; ``count`` 0 where the reference must read it.
    int place
    int count
    Field fields[4]


cdef struct Step:
    # Where an event stands in its transaction, and what is open after it.
    bint known  # it belongs to a transaction
    bint begins  # ``_new_name`` is that of the transaction
    int ends
    int64_t ordinal
    int mode


cdef class EventRecordWriter:
    """Makes records of the events topic of raw events, as long as these are of the ordinary kinds.

    ``plans(log_format)`` gives what is needed to read a log of that format: per type code None, or (layout,
    role, post-header length, (version, before, after), fields, the type's name, the union's branch).
    ``variables`` does so for the status variables: (code, fields). ``write_text``, ``write_table_map`` and
    ``write_variables`` are the reference's, for what is not plain, and give bytes of Avro.

    After :meth:`take`, ``taken_bytes`` is the size of the events that were taken, ``written_bytes`` that of
    their records, and :meth:`standing` tells where the transaction stands.
    """

    cdef readonly Py_ssize_t taken_bytes
    cdef readonly Py_ssize_t written_bytes

    cdef object _make_plans
    cdef object _write_text
    cdef object _write_table_map
    cdef object _write_variables
    cdef bytes _prefix
    cdef Plan _plans[256]
    cdef list _names
    cdef list _branches
    cdef Variable _variables[256]
    cdef int _variable_count
    cdef Sink _sink

    # The log's format, and where it is read.
    cdef object _format
    cdef bint _checksums
    cdef object _decode_table_map
    cdef object _scope
    cdef bytes _log_file
    cdef bytes _log_file_text
    cdef int64_t _epoch

    # What comes again and again: by its bytes on the wire, what the reference made of it.
    cdef dict _table_maps
    cdef dict _statuses
    cdef object _last_table_map
    cdef bytes _last_table

    # The transaction.
    cdef object _transaction
    cdef uint8_t _name[NAME_LIMIT]
    cdef int _name_size
    cdef uint8_t _new_name[NAME_LIMIT]
    cdef int _new_name_size
    cdef int64_t _ordinal
    cdef int _mode
    cdef object _xid

    def __cinit__(self):
        self._sink.data = NULL
        self._sink.size = self._sink.capacity = 0
        if not grow(&self._sink, 0):
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self._sink.data)

    def __init__(self, bytes prefix not None, plans, list variables not None, write_text, write_table_map,
                 write_variables):
        cdef int code, place
        self._prefix = prefix
        self._make_plans = plans
        self._write_text, self._write_table_map = write_text, write_table_map
        self._write_variables = write_variables
        self._table_maps, self._statuses = {}, {}
        self._names, self._branches = [b""] * 256, [b""] * 256
        self._log_file = self._log_file_text = b""
        for code in range(256):
            self._variables[code].place = -1
            self._variables[code].count = 0
        self._variable_count = len(variables)
        if self._variable_count > MOST_VARIABLES:
            raise ValueError("more status variables than there is room for")
        for place, (code, fields) in enumerate(variables):
            if not 0 <= code < 256:
                raise ValueError("a status variable that has no plan")
            self._variables[code].place = place
            self._variables[code].count = take_fields(self._variables[code].fields, 4, fields)

    # -- the log and the transaction -------------------------------------------------------------------

    cdef int _use_format(self, log_format) except -1:
        cdef int code
        plans = self._make_plans(log_format)
        self._format = None
        for code in range(256):
            self._plans[code].layout = LAYOUT_NONE
            plan = plans[code]
            if plan is None:
                continue
            layout, role, known, (version, before, after), fields, name, branch = plan
            if not 0 <= known < 256:
                raise ValueError("an event that has no plan")
            self._plans[code].layout, self._plans[code].role = layout, role
            self._plans[code].known, self._plans[code].version = known, version
            self._plans[code].before, self._plans[code].after = before, after
            self._plans[code].count = take_fields(self._plans[code].fields, MOST_FIELDS, fields)
            self._names[code], self._branches[code] = name, branch
            if layout == LAYOUT_TABLE_MAP:
                self._decode_table_map = log_format.codecs[code][0]
        self._checksums = log_format.checksum == 1
        self._table_maps.clear()
        self._format = log_format
        return 0

    cdef int _use_scope(self, tuple scope) except -1:
        epoch, log_file = scope
        self._epoch = epoch
        # For names of transactions, in which it stands as it is; what is not ASCII is left to the reference.
        self._log_file = log_file.encode("ascii", "replace")
        self._log_file_text = self._write_text(log_file)
        self._scope = scope
        return 0

    cdef bint _use_standing(self, tuple standing) except -1:
        cdef bytes name
        transaction, self._ordinal, self._mode, self._xid = standing
        if transaction is None:
            self._transaction = None
            self._name_size = 0
        elif self._transaction is None or transaction != self._transaction:
            if not transaction.isascii() or len(transaction) > NAME_LIMIT or not transaction:
                return False
            name = transaction.encode("ascii")
            memcpy(self._name, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            self._name_size = <int> PyBytes_GET_SIZE(name)
            self._transaction = transaction
        return True

    def standing(self) -> tuple:
        """Give where the transaction stands, as the TransactionTracker does."""
        if self._transaction is None and self._name_size:
            self._transaction = PyUnicode_DecodeASCII(<const char*> self._name, self._name_size, NULL)
        return self._transaction, self._ordinal, self._mode, self._xid

    # -- the batch -------------------------------------------------------------------------------------

    def take(self, list records not None, Py_ssize_t index, bytes head not None, tuple scope not None, stream,
             tuple standing not None, Py_ssize_t limit, Py_ssize_t most, list out not None):
        """Take the raw records from ``index`` on; give the index of the first that is not taken.

        ``head`` is a key without its position, whose epoch and file those of all must be. What is written is appended
        to ``out``, as millrace.stage.OutputRecord; none is larger than ``limit``, and it ends beyond ``most`` bytes.
        ``stream`` is the StreamState, which is kept; ``standing`` where the TransactionTracker stands.
        """
        cdef Py_ssize_t count = len(records)
        self.taken_bytes = self.written_bytes = 0
        log_format = stream.format
        if log_format is None or log_format.header_length != HEADER_LENGTH or stream.encryption is not None:
            return index
        if log_format is not self._format:
            self._use_format(log_format)
        if scope != self._scope:
            self._use_scope(scope)
        if not self._use_standing(standing):
            return index
        cdef dict table_maps = stream.table_maps
        while index < count and self.written_bytes <= most:
            record = records[index]
            key, data = record[KEY], record[VALUE]
            if not PyBytes_CheckExact(key) or not PyBytes_CheckExact(data) or record[HEADERS] is not None:
                break
            value = self._take_one(head, key, data, table_maps, limit)
            if value is None:
                break
            self.taken_bytes += PyBytes_GET_SIZE(data)
            self.written_bytes += PyBytes_GET_SIZE(value)
            out.append((<bytes> key + b":0", value, record[TIMESTAMP], None))
            index += 1
        return index

    cdef bytes _take_one(self, bytes head, bytes key, bytes data, dict table_maps, Py_ssize_t limit):
        """Make the record of one event and note what follows from it; None where it is for the reference."""
        cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
        cdef Source source = source_of(data, 0, end)
        cdef int64_t position = position_of(head, key)
        cdef uint64_t timestamp = read_uint(&source, 4)
        cdef int type_code = <int> read_uint(&source, 1)
        cdef uint64_t server_id = read_uint(&source, 4)
        cdef uint64_t event_size = read_uint(&source, 4)
        cdef uint64_t next_position = read_uint(&source, 4)
        cdef uint64_t flags = read_uint(&source, 2)
        if source.bad or position < 0 or event_size != <uint64_t> end:
            return None
        cdef Plan* plan = &self._plans[type_code]
        if plan.layout == LAYOUT_NONE:
            return None
        if self._checksums:
            if end < HEADER_LENGTH + CHECKSUM_LENGTH or crc32(data) != CRC32_RESIDUE:
                return None
            source.end = end - CHECKSUM_LENGTH
        # What the tracker makes of it, and the table, which must be known in front of the event.
        cdef Step step
        cdef Sink* sink = &self._sink
        cdef bytes table = None
        cdef tuple table_map = None
        cdef int64_t table_id = 0
        cdef bint ends_statement = False
        sink.size, sink.bad = 0, False
        if plan.layout == LAYOUT_TABLE_MAP:
            table_map = self._table_map(data, source.end, plan)
            if table_map is None:
                return None
            table = <bytes> table_map[3]
        elif plan.layout == LAYOUT_ROWS:
            table_id = <int64_t> read_uint(&source, 4 if plan.known == 6 else 6)
            ends_statement = read_uint(&source, 2) & 1
            source.at = HEADER_LENGTH
            table = self._table_of(table_maps.get(table_id))
        if source.bad or not self._step(plan, &source, server_id, position, ends_statement, &step):
            return None
        put_bytes(sink, self._prefix)
        put_bytes(sink, self._log_file_text)
        put_long(sink, position)
        put_byte(sink, 0)  # sub_index
        put_bytes(sink, <bytes> self._names[type_code])
        put_long(sink, <int64_t> timestamp)
        put_long(sink, type_code)
        put_long(sink, <int64_t> server_id)
        put_long(sink, <int64_t> event_size)
        put_long(sink, <int64_t> next_position)
        put_long(sink, <int64_t> flags)
        put_byte(sink, 0)  # extra_headers
        if self._checksums:
            put_byte(sink, 2)
            put_long(sink, CHECKSUM_LENGTH)
            put_checksum(sink, data)
        else:
            put_byte(sink, 0)
        put_byte(sink, 0)  # artificial
        put_byte(sink, 0)  # post_header_extra
        put_long(sink, self._epoch)
        self._put_step(sink, &step)
        if table is None:
            put_byte(sink, 0)
            put_byte(sink, 0)
        else:
            put_bytes(sink, table)
        put_bytes(sink, <bytes> self._branches[type_code])
        if plan.layout == LAYOUT_TABLE_MAP:
            put_bytes(sink, <bytes> table_map[2])
        elif plan.layout == LAYOUT_ROWS:
            put_rows(sink, &source, plan)
        else:
            source.bad |= source.end - source.at < plan.known
            self._put_fields(sink, &source, plan.fields, plan.count, data)
            source.bad |= source.at != source.end
        if source.bad or sink.bad or sink.size > limit:
            return None
        value = PyBytes_FromStringAndSize(<const char*> sink.data, sink.size)
        # Nothing can go wrong any more: note what follows from the event.
        if table_map is not None:
            table_maps[table_map[1]] = table_map[0]
        elif ends_statement:
            table_maps.clear()
        self._note_step(&step)
        return value

    # -- the transaction -------------------------------------------------------------------------------

    cdef bint _step(self, Plan* plan, Source* event, uint64_t server_id, int64_t position, bint ends_statement,
                    Step* step) except -1:
        """Do what the TransactionTracker does with an event, without noting it; False: it must do so itself."""
        cdef Source source = event[0]
        cdef int role = plan.role
        cdef int entry
        cdef uint64_t number, domain
        if plan.layout == LAYOUT_ROWS:
            role = ROLE_SINGLE if ends_statement else ROLE_SETTING
        elif plan.layout == LAYOUT_QUERY:
            role = role_of_query(&source, plan.known)
        elif plan.layout == LAYOUT_MARIADB_GTID:
            number = read_uint(&source, 8)
            domain = read_uint(&source, 4)
            if read_uint(&source, 1) & 1:
                role = ROLE_GTID
        if role < 0 or source.bad:
            return False
        entry = transition(role, self._mode)
        step.known, step.begins = (entry & COUNTS) != 0, (entry & OPENS) != 0
        step.mode = entry & MODE_MASK
        step.ordinal, step.ends = self._ordinal if step.known else 0, END_NONE
        if step.begins:
            step.ordinal = 0
            if plan.layout == LAYOUT_MARIADB_GTID:
                self._name_mariadb_gtid(domain, server_id, number)
            elif plan.layout == LAYOUT_GTID and role == ROLE_GTID:
                skip(&source, 1)
                self._name_gtid(&source)
            elif not self._name_place(position):
                return False
        if step.known and entry & ENDS:
            step.ends = END_ROLLBACK if role == ROLE_ROLLBACK else END_COMMIT
        return not source.bad

    cdef void _note_step(self, Step* step) noexcept:
        if not step.known:
            return
        if step.begins:
            memcpy(self._name, self._new_name, self._new_name_size)
            self._name_size = self._new_name_size
            self._transaction = self._xid = None
        if step.ends != END_NONE:
            self._name_size = 0
            self._transaction = self._xid = None
            self._ordinal, self._mode = 0, MODE_NONE
        else:
            self._ordinal, self._mode = step.ordinal + 1, step.mode

    cdef void _put_step(self, Sink* sink, Step* step) noexcept:
        cdef int size = self._new_name_size if step.begins else self._name_size
        cdef const uint8_t* name = self._name
        if step.begins:
            name = self._new_name
        if not step.known:
            put_byte(sink, 0)
        else:
            put_byte(sink, 2)
            put_long(sink, size)
            if room(sink, size):
                memcpy(sink.data + sink.size, name, size)
                sink.size += size
        put_long(sink, step.ordinal)
        put_byte(sink, step.begins)
        if step.ends == END_NONE:
            put_byte(sink, 0)
        else:
            put_byte(sink, 2)
            put_bytes(sink, b"\x0ccommit" if step.ends == END_COMMIT else b"\x10rollback")
        put_byte(sink, 0)  # xid

    cdef void _name_byte(self, uint8_t byte) noexcept:
        if self._new_name_size < NAME_LIMIT:
            self._new_name[self._new_name_size] = byte
            self._new_name_size += 1

    cdef void _name_number(self, uint64_t number) noexcept:
        cdef uint8_t digits[20]
        cdef int count = 0
        while True:
            digits[count] = <uint8_t> (48 + number % 10)
            count += 1
            number //= 10
            if number == 0:
                break
        while count > 0:
            count -= 1
            self._name_byte(digits[count])

    cdef bint _name_place(self, int64_t position):
        # file:position; a file whose name is not ASCII is the reference's.
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._log_file)
        if size + 21 > NAME_LIMIT or not self._scope[1].isascii():
            return False
        memcpy(self._new_name, PyBytes_AS_STRING(self._log_file), size)
        self._new_name_size = <int> size
        self._name_byte(COLON)
        self._name_number(<uint64_t> position)
        return True

    cdef void _name_mariadb_gtid(self, uint64_t domain, uint64_t server_id, uint64_t number) noexcept:
        self._new_name_size = 0
        self._name_number(domain)
        self._name_byte(MINUS)
        self._name_number(server_id)
        self._name_byte(MINUS)
        self._name_number(number)

    cdef void _name_gtid(self, Source* source) noexcept:
        # The uuid, a colon, and the number, which has a sign.
        cdef int index
        cdef uint64_t byte, number
        self._new_name_size = 0
        for index in range(16):
            byte = read_uint(source, 1)
            self._name_byte(DIGITS[byte >> 4])
            self._name_byte(DIGITS[byte & 15])
            if index == 3 or index == 5 or index == 7 or index == 9:
                self._name_byte(MINUS)
        self._name_byte(COLON)
        number = read_uint(source, 8)
        if number >> 63:
            self._name_byte(MINUS)
            number = 0 - number
        self._name_number(number)

    # -- what has its own layout -----------------------------------------------------------------------

    cdef tuple _table_map(self, bytes data, Py_ssize_t end, Plan* plan):
        """Give (event, table_id, its bytes in Avro, those of database and table) of a table map."""
        cdef bytes content = data[HEADER_LENGTH:end]
        known = self._table_maps.get(content)
        if known is not None:
            return <tuple> known
        try:
            event = self._decode_table_map(data, HEADER_LENGTH, end, plan.known)
        except BinlogError:
            return None
        made = event, event.table_id, self._write_table_map(event), self._table_of(event)
        remember(self._table_maps, content, made)
        return made

    cdef bytes _table_of(self, table_map):
        """Give database and table of a table map in Avro, each after its branch of the union."""
        if table_map is None:
            return None
        if table_map is not self._last_table_map:
            self._last_table = (
                b"\x02" + self._write_text(table_map.database) + b"\x02" + self._write_text(table_map.table)
            )
            self._last_table_map = table_map
        return self._last_table

    cdef bint _put_status(self, Sink* sink, Source* source, Py_ssize_t at, Py_ssize_t size, bytes data) except -1:
        """Write status variables; what of them has no plan is written by the reference, and remembered."""
        cdef Py_ssize_t start = sink.size
        cdef bytes block, written
        if self._put_variables(sink, source, at, size, data):
            return True
        sink.size = start
        block = data[at:at + size]
        written = <bytes> self._statuses.get(block)
        if written is None:
            try:
                written = self._write_variables(block)
            except BinlogError:
                return False
            remember(self._statuses, block, written)
        put_bytes(sink, written)
        return True

    cdef bint _put_variables(self, Sink* sink, const Source* block, Py_ssize_t at, Py_ssize_t size,
                             bytes data) except -1:
        cdef Source source = block[0]
        cdef Source found[MOST_VARIABLES]
        cdef uint8_t codes[MOST_VARIABLES]
        cdef int order[MOST_VARIABLES]
        cdef int code, place, index, count = 0
        source.at, source.end = at, at + size
        for index in range(self._variable_count):
            order[index] = -1
        while source.at < source.end:
            code = <int> read_uint(&source, 1)
            place = self._variables[code].place
            if place < 0 or self._variables[code].count == 0 or order[place] >= 0:
                return False
            order[place] = code
            codes[count] = <uint8_t> code
            count += 1
            found[place] = source
            for index in range(self._variables[code].count):
                skip_field(&source, self._variables[code].fields[index].wire)
            found[place].end = source.at
            if source.bad:
                return False
        put_long(sink, count)
        for index in range(count):
            put_byte(sink, codes[index])
        put_byte(sink, 0)  # unknown
        for place in range(self._variable_count):
            code = order[place]
            if code < 0:
                put_byte(sink, 0)
                continue
            put_byte(sink, 2)
            self._put_fields(sink, &found[place], self._variables[code].fields, self._variables[code].count, data)
            if found[place].bad or found[place].at != found[place].end:
                return False
        return True

    cdef int _put_text(self, Sink* sink, const Source* source, Py_ssize_t at, Py_ssize_t size) except -1:
        """Write a name: as it is where it is ASCII, else as the reference does."""
        cdef bytes raw
        if source.bad:
            return 0
        if is_ascii(source, at, size):
            put_sized(sink, source, at, size)
        else:
            raw = slice_of(source, at, size)
            put_bytes(sink, self._write_text(raw.decode("utf-8", "surrogateescape")))
        return 0

    cdef int _put_fields(self, Sink* sink, Source* source, const Field* fields, int count, bytes data) except -1:
        """Write fields as their plans say, each read after those before it; a hidden one is only read."""
        cdef uint64_t numbers[MOST_FIELDS]
        cdef const Field* field
        cdef uint64_t number
        cdef int index
        for index in range(count):
            field = &fields[index]
            numbers[index] = 0
            if field.condition & CONDITION_OPTIONAL:
                if field.condition & CONDITION_ABSENT or (
                    field.condition & CONDITION_WHEN and not numbers[field.place] & field.mask
                ) or (field.condition & CONDITION_REMAINS and source.at >= source.end):
                    put_byte(sink, 0)
                    continue
                put_byte(sink, 2)
            if field.wire in (WIRE_REST_BYTES, WIRE_REST_TEXT, WIRE_TEXT8, WIRE_TEXT8_NUL, WIRE_BYTES16, WIRE_STATUS):
                self._put_sized_field(sink, source, field, numbers[field.place], data)
                continue
            number = numbers[index] = read_number(source, field.wire)
            if not field.condition & CONDITION_HIDDEN:
                put_long(sink, <int64_t> (number & ~field.drop))
        return 0

    cdef int _put_sized_field(self, Sink* sink, Source* source, const Field* field, uint64_t length,
                              bytes data) except -1:
        cdef int wire = field.wire
        cdef Py_ssize_t at, size = source.end - source.at
        if field.condition & CONDITION_SIZED:
            size = <Py_ssize_t> length
        elif wire == WIRE_BYTES16:
            size = 16
        elif wire == WIRE_TEXT8 or wire == WIRE_TEXT8_NUL:
            size = <Py_ssize_t> read_uint(source, 1)
        at = skip(source, size)
        if wire == WIRE_TEXT8_NUL and read_uint(source, 1) != 0:
            source.bad = True
        if source.bad:
            return 0
        if wire == WIRE_STATUS:
            source.bad |= not self._put_status(sink, source, at, size, data)
        elif wire == WIRE_REST_BYTES or wire == WIRE_BYTES16:
            put_sized(sink, source, at, size)
        else:
            self._put_text(sink, source, at, size)
        return 0


cdef uint64_t read_number(Source* source, int wire) noexcept nogil:
    cdef Py_ssize_t at = source.at
    cdef uint64_t number
    if wire <= 8:
        return read_uint(source, wire)
    if wire == WIRE_INT64:
        return read_uint(source, 8)
    if wire == WIRE_INT32:
        return <uint64_t> <int64_t> <int> read_uint(source, 4)
    if wire == WIRE_LENENC:
        return read_lenenc(source)
    if wire == WIRE_UNLESS_ZERO:
        number = read_uint(source, 1) if at < source.end else 0
        if number == 0:
            source.at = at
        return number
    number = read_uint(source, 1)
    if wire == WIRE_ALWAYS_TWO:
        source.bad |= number != 2
    elif wire == WIRE_ZERO:
        source.bad |= number != 0
    else:
        source.bad = True
    return number


cdef int take_fields(Field* fields, Py_ssize_t room, plans) except -1:
    """Note the plans of fields, and give how many they are."""
    cdef int index
    if len(plans) > room:
        raise ValueError("more fields than there is room for")
    for index, (wire, condition, place, mask, drop) in enumerate(plans):
        if not 0 <= place < len(plans):
            raise ValueError("a field that asks another, which is not there")
        fields[index].wire, fields[index].condition, fields[index].place = wire, condition, place
        fields[index].mask, fields[index].drop = mask, drop
    return <int> len(plans)


cdef int remember(dict known, bytes key, made) except -1:
    if PyBytes_GET_SIZE(key) <= REMEMBERED_SIZE:
        if len(known) >= REMEMBERED_LARGE:
            known.clear()
        known[key] = made
    return 0


cdef void skip_field(Source* source, int wire) noexcept nogil:
    if wire <= 8:
        skip(source, wire)
    elif wire == WIRE_INT64:
        skip(source, 8)
    elif wire == WIRE_INT32:
        skip(source, 4)
    elif wire == WIRE_TEXT8:
        skip(source, <Py_ssize_t> read_uint(source, 1))
    elif wire == WIRE_TEXT8_NUL:
        skip(source, <Py_ssize_t> read_uint(source, 1) + 1)
    else:
        source.bad = True


cdef int64_t position_of(bytes head, bytes key) noexcept:
    """Read the position of a key with the epoch and file of ``head``; -1 where it has others, or is spelled oddly.

    In front of both stands the server on which the event originated, which may be any.
    """
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(key)
    cdef const char* place = PyBytes_AS_STRING(head)
    cdef const char* text = PyBytes_AS_STRING(key)
    cdef int64_t position = 0
    cdef Py_ssize_t at = 0, start = 0, size
    while start < head_size and place[start] != COLON:
        start += 1
    while at < end and 48 <= text[at] <= 57:
        at += 1
    size = head_size - start
    if at == 0 or size == 0 or not 2 <= end - at - size <= 19:
        return -1
    if memcmp(text + at, place + start, size) != 0 or text[at + size] != COLON:
        return -1
    for at in range(at + size + 1, end):
        if not 48 <= text[at] <= 57:
            return -1
        position = 10 * position + (text[at] - 48)
    return position


cdef inline void put_checksum(Sink* sink, bytes data) noexcept:
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef Source source = source_of(data, 0, end)
    put_slice(sink, &source, end - CHECKSUM_LENGTH, CHECKSUM_LENGTH)


cdef void put_rows(Sink* sink, Source* source, Plan* plan) noexcept:
    cdef Py_ssize_t size = 0, at = source.at, before, after
    cdef uint64_t count
    put_long(sink, <int64_t> read_uint(source, 4 if plan.known == 6 else 6))
    put_long(sink, <int64_t> read_uint(source, 2))
    if plan.version == 2:
        size = <Py_ssize_t> read_uint(source, 2) - 2
        at = skip(source, size)
        put_sized(sink, source, at, size)
    else:
        put_long(sink, 0)
    count = read_lenenc(source)
    if source.bad or count > 1 << 32:
        source.bad = True
        return
    put_long(sink, <int64_t> count)
    size = <Py_ssize_t> ((count + 7) // 8)
    before = after = skip(source, size)
    if plan.before and plan.after and plan.version:
        after = skip(source, size)
    put_sized(sink, source, before, size if plan.before else 0)
    put_sized(sink, source, after, size if plan.after else 0)
    size = source.end - source.at
    at = skip(source, size)
    put_sized(sink, source, at, size)


# ------------------------------------------------------------------------------------------ raw records

cdef class RawTaker:
    """Makes records of the raw topic of whole events that come one after the other.

    ``roles`` has the role of each type of event, by its code; those of ``left`` are left to the reader. After
    :meth:`take`: ``position`` and ``last_ms`` as the next event finds them, ``size``, the bytes of the events,
    ``mode`` and ``open_gtid`` of the transaction that is open, ``ended``, whether the last event ends one, and
    ``finished``, the GTIDs of those that are whole.
    """

    cdef readonly int64_t position
    cdef readonly int64_t last_ms
    cdef readonly Py_ssize_t size
    cdef readonly int mode
    cdef readonly object open_gtid
    cdef readonly bint ended
    cdef readonly list finished
    cdef uint8_t _roles[256]
    cdef bint _left[256]
    cdef Sink _sink

    def __cinit__(self):
        self._sink.data = NULL
        self._sink.size = self._sink.capacity = 0
        if not grow(&self._sink, 0):
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self._sink.data)

    def __init__(self, bytes roles not None, left):
        cdef int code
        if len(roles) != 256:
            raise ValueError("not a role per type code")
        for code in range(256):
            self._roles[code] = roles[code]
            self._left[code] = code in left

    def take(self, list pieces not None, Py_ssize_t index, int64_t position, bint zero_allowed, int64_t last_ms,
             int64_t now_ms, Py_ssize_t limit, bint checksums, bytes prefix not None, int mode, open_gtid,
             bint stop_at_end, list out not None):
        """Append records, as millrace.stage.OutputRecord, to ``out``; give the index of the first piece left.

        It ends before what the reader must look at itself (what is no whole event, does not stand at ``position``,
        is larger than ``limit``, has a bad checksum), and with ``stop_at_end`` after the end of a transaction.
        ``mode`` and ``open_gtid`` are those of the transaction that is open.
        """
        cdef Py_ssize_t count = len(pieces), end
        cdef Source source
        cdef uint64_t timestamp, server_id, event_size, next_position
        cdef int64_t timestamp_ms
        cdef int type_code, role
        cdef bytes data
        self.mode, self.open_gtid = mode, open_gtid
        self.position, self.last_ms, self.size, self.ended, self.finished = position, last_ms, 0, False, []
        while index < count and not (stop_at_end and self.ended):
            piece = pieces[index]
            if not isinstance(piece, tuple) or len(<tuple> piece) != 4 or not PyBytes_CheckExact((<tuple> piece)[0]):
                break
            data = <bytes> (<tuple> piece)[0]
            end = PyBytes_GET_SIZE(data)
            if (<tuple> piece)[1] is not True or (<tuple> piece)[2] is not True or (<tuple> piece)[3] != end:
                break
            source = source_of(data, 0, end)
            timestamp = read_uint(&source, 4)
            type_code = <int> read_uint(&source, 1)
            role = self._roles[type_code]
            server_id = read_uint(&source, 4)
            event_size = read_uint(&source, 4)
            next_position = read_uint(&source, 4)
            skip(&source, 2)
            if source.bad or self._left[type_code] or event_size != <uint64_t> end or end > limit:
                break
            if next_position != (<uint64_t> (self.position + end) & 0xFFFFFFFF) and (
                next_position != 0 or not zero_allowed
            ):
                break
            if checksums:
                if end < HEADER_LENGTH + CHECKSUM_LENGTH or crc32(data) != CRC32_RESIDUE:
                    break
                source.end = end - CHECKSUM_LENGTH
            if role != ROLE_PART and not self._note(role, server_id, &source):
                break
            timestamp_ms = <int64_t> timestamp * 1000
            if timestamp_ms < self.last_ms:
                timestamp_ms = self.last_ms
            if timestamp_ms > now_ms:
                timestamp_ms = now_ms
            self.last_ms = timestamp_ms
            out.append((self._key(server_id, prefix), data, timestamp_ms, None))
            self.position += end
            self.size += end
            index += 1
        return index

    cdef bytes _key(self, uint64_t server_id, bytes prefix):
        self._sink.size, self._sink.bad = 0, False
        put_number(&self._sink, server_id)
        put_bytes(&self._sink, prefix)
        put_number(&self._sink, <uint64_t> self.position)
        if self._sink.bad:
            raise MemoryError()
        return PyBytes_FromStringAndSize(<const char*> self._sink.data, self._sink.size)

    cdef bint _note(self, int role, uint64_t server_id, Source* source) except -1:
        """Note what an event is to its transaction; False, and nothing noted, where the reader must do so."""
        cdef Py_ssize_t at
        cdef uint64_t number, domain
        cdef int entry
        gtid = None
        if role == ROLE_QUERY:
            role = role_of_query(source, 13)
        elif role == ROLE_GROUP_GTID:
            number = read_uint(source, 8)
            domain = read_uint(source, 4)
            gtid = domain, server_id, number
            if read_uint(source, 1) & 1:
                role = ROLE_GTID
        elif role == ROLE_GTID:
            skip(source, 1)
            at = skip(source, 16)
            number = read_uint(source, 8)
            if not source.bad:
                gtid = slice_of(source, at, 16), number
        if role < 0 or source.bad:
            return False
        entry = transition(role, self.mode)
        if entry & CHANGES:
            # Where one begins, the one before is whole; that is no end at which to stop.
            if self.open_gtid is not None:
                self.finished.append(self.open_gtid)
            self.open_gtid = gtid
        self.mode = entry & MODE_MASK
        self.ended = (entry & ENDS) != 0
        return True


cdef void put_number(Sink* sink, uint64_t number) noexcept:
    cdef uint8_t digits[20]
    cdef int count = 0
    while True:
        digits[count] = <uint8_t> (48 + number % 10)
        count += 1
        number //= 10
        if number == 0:
            break
    while count > 0:
        count -= 1
        put_byte(sink, digits[count])


# ------------------------------------------------------------------------------------------ reading records

cdef class RecordReader:
    """Makes values of a declared class of their bytes in Avro, by the kinds of its fields.

    ``kinds`` has a number per field, ``readers`` the reference's function where that is KIND_OTHER;
    ``read_text(raw)`` makes a name of its bytes.
    """

    cdef object _declared
    cdef uint8_t _kinds[MOST_FIELDS]
    cdef int _count
    cdef list _readers
    cdef object _read_text

    def __init__(self, declared, list kinds not None, list readers not None, read_text):
        cdef int index
        if len(kinds) > MOST_FIELDS or len(readers) != len(kinds):
            raise ValueError("more fields than there is room for")
        self._declared, self._readers, self._read_text = declared, readers, read_text
        self._count = len(kinds)
        for index in range(self._count):
            self._kinds[index] = kinds[index]

    cdef object read(self, bytes data, Source* source):
        """Read a value at the source's place; None, or ``source.bad``, where the reference must do so."""
        cdef int index, kind
        cdef Py_ssize_t at, size
        cdef uint64_t number
        cdef list values = [None] * self._count
        for index in range(self._count):
            kind = self._kinds[index]
            if kind & KIND_OPTIONAL and not read_branch(source):
                continue
            kind &= ~KIND_OPTIONAL
            if kind == KIND_LONG:
                value = read_long(source)
            elif kind == KIND_UINT64:
                number = <uint64_t> read_long(source)
                value = number
            elif kind == KIND_OTHER:
                if source.bad:
                    return None
                value, at = self._readers[index](data, source.at)
                if at < source.at or at > source.end:
                    return None
                source.at = at
            else:
                size = <Py_ssize_t> read_long(source)
                at = skip(source, size)
                if source.bad:
                    return None
                value = slice_of(source, at, size)
                if kind == KIND_TEXT:
                    value = self._read_text(value)
            values[index] = value
        return None if source.bad else self._declared(*values)


cdef class EventHead:
    """A record of the events topic, as :class:`millrace.avro.events.EventRecord`: the same attributes."""

    cdef bytes _data
    cdef HeadReader _reader
    cdef Py_ssize_t _start
    cdef Py_ssize_t _offset
    cdef Py_ssize_t _checksum
    cdef object _header
    cdef object _event
    cdef int64_t _event_size
    cdef int64_t _next_position
    cdef int64_t _flags

    cdef readonly object log_file
    cdef readonly int64_t position
    cdef readonly int64_t sub_index
    cdef readonly int64_t timestamp
    cdef readonly int64_t type_code
    cdef readonly int64_t server_id
    cdef readonly bint artificial
    cdef readonly int64_t epoch
    cdef readonly object transaction
    cdef readonly int64_t ordinal
    cdef readonly bint begins
    cdef readonly object ends
    cdef readonly object xid
    cdef readonly object database
    cdef readonly object table

    @property
    def checksum(self):
        """The checksum, 4 bytes as they are; None where there is none."""
        return None if self._checksum < 0 else self._data[self._checksum:self._checksum + CHECKSUM_LENGTH]

    @property
    def post_header_extra(self):
        """What a newer server has at the end of the post-header: nothing, or this were EventRecord."""
        return b""

    @property
    def header(self):
        """The common header."""
        if self._header is None:
            self._header = self._reader._header_class(
                self.timestamp, self.type_code, self.server_id, self._event_size, self._next_position,
                self._flags
            )
        return self._header

    @property
    def event(self):
        """The typed event. Raises InvalidValueError where the record is damaged."""
        if self._event is None:
            self._event = self._reader.event(self._data, self._start, self._offset, self.type_code)
        return self._event

    @property
    def decoded(self):
        """The event as the codec has it; encoded, it gives the bytes of the log."""
        return self._reader._decoded_class(self.header, self.event, self.checksum, b"")


cdef class Remembered:
    """The last name that stood in one place of a record: most often the next is the same."""

    cdef bytes raw
    cdef object text

    def __cinit__(self):
        self.raw, self.text = b"", ""


cdef class HeadReader:
    """Reads records of the events topic; ``reference(value, offset)`` reads what is not plain here.

    ``readers`` has a RecordReader per branch of the union of events, ``repeated`` the type codes of events
    that come again and again with the same bytes, ``ends`` the ends of transactions by name.
    """

    cdef object _reference
    cdef list _readers
    cdef object _read_text
    cdef dict _ends
    cdef frozenset _repeated
    cdef object _header_class
    cdef object _decoded_class
    cdef Remembered _log_file
    cdef Remembered _transaction
    cdef Remembered _database
    cdef Remembered _table
    cdef Remembered _other
    cdef dict _texts
    cdef dict _events

    def __init__(self, reference, list readers not None, read_text, dict ends not None,
                 frozenset repeated not None, header_class, decoded_class):
        self._reference, self._readers, self._read_text = reference, readers, read_text
        self._ends, self._repeated = ends, repeated
        self._header_class, self._decoded_class = header_class, decoded_class
        self._texts, self._events = {}, {}
        self._log_file, self._transaction, self._other = Remembered(), Remembered(), Remembered()
        self._database, self._table = Remembered(), Remembered()

    def __call__(self, bytes value not None, Py_ssize_t offset):
        """Read the record that begins at ``offset`` of ``value``."""
        cdef Source source = source_of(value, offset, PyBytes_GET_SIZE(value))
        head = self._read(value, &source, offset)
        return self._reference(value, offset) if head is None else head

    cdef EventHead _read(self, bytes data, Source* source, Py_ssize_t start):
        cdef EventHead head = EventHead.__new__(EventHead)
        head._data, head._reader, head._start = data, self, start
        head.log_file = self._text(source, self._log_file)
        head.position = read_long(source)
        head.sub_index = read_long(source)
        skip(source, <Py_ssize_t> read_long(source))  # the type's name
        head.timestamp = read_long(source)
        head.type_code = read_long(source)
        head.server_id = read_long(source)
        head._event_size = read_long(source)
        head._next_position = read_long(source)
        head._flags = read_long(source)
        expect(source, read_long(source), 0)  # extra_headers
        head._checksum = -1
        if read_branch(source):
            expect(source, read_long(source), CHECKSUM_LENGTH)
            head._checksum = skip(source, CHECKSUM_LENGTH)
        head.artificial = read_flag(source)
        expect(source, read_long(source), 0)  # post_header_extra
        head.epoch = read_long(source)
        head.transaction = self._text(source, self._transaction) if read_branch(source) else None
        head.ordinal = read_long(source)
        head.begins = read_flag(source)
        if read_branch(source):
            head.ends = self._ends.get(self._text(source, self._other))
            source.bad |= head.ends is None
        head.xid = self._text(source, self._other) if read_branch(source) else None
        head.database = self._text(source, self._database) if read_branch(source) else None
        head.table = self._text(source, self._table) if read_branch(source) else None
        head._offset = source.at
        return None if source.bad else head

    cdef object _text(self, Source* source, Remembered last):
        """Read a name; None, and ``bad``, where there is none."""
        cdef Py_ssize_t size = <Py_ssize_t> read_long(source)
        cdef Py_ssize_t at = skip(source, size)
        cdef bytes raw
        if source.bad:
            return None
        if size == PyBytes_GET_SIZE(last.raw) and \
                memcmp(source.data + at, PyBytes_AS_STRING(last.raw), size) == 0:
            return last.text
        raw = slice_of(source, at, size)
        text = self._texts.get(raw) if last is not self._transaction else None
        if text is None:
            try:
                text = PyUnicode_DecodeASCII(<const char*> source.data + at, size, NULL) \
                    if is_ascii(source, at, size) else self._read_text(raw)
            except UnicodeDecodeError:
                source.bad = True
                return None
            if last is not self._transaction and size <= NAME_LIMIT:
                if len(self._texts) >= REMEMBERED:
                    self._texts.clear()
                self._texts[raw] = text
        last.raw, last.text = raw, text
        return text

    cdef object event(self, bytes data, Py_ssize_t start, Py_ssize_t offset, int64_t type_code):
        """Read the event of a record."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef bytes content = None
        if size - offset <= NAME_LIMIT and type_code in self._repeated:
            content = data[offset:size]
            event = self._events.get(content)
            if event is not None:
                return event
        cdef Source source = source_of(data, offset, size)
        cdef int64_t branch = read_long(&source)
        event = None
        if not source.bad and 0 <= branch < len(self._readers):
            try:
                event = (<RecordReader?> self._readers[branch]).read(data, &source)
            except (BinlogError, IndexError, UnicodeDecodeError, StructError):
                source.bad = True
        if event is None or source.bad or source.at != size:
            return self._reference(data, start).event
        if content is not None:
            if len(self._events) >= REMEMBERED:
                self._events.clear()
            self._events[content] = event
        return event
