"""Events of a log, compiled: from their bytes to records of the raw topic and of ``{source}.events``, and to objects.

:class:`EventRecordWriter` does in one go what decode_event, TransactionTracker and EventSerializer do one after the
other, for the events of which logs consist, by the plans that :mod:`millrace.avro.plans` makes of the declarations.
:class:`LogRecordMaker` does so for ``millrace binlog``, and gives the objects that the reference gives.
:class:`RawTaker` makes the reader's records of events that it need not look into. Both follow the grammar of
transactions. :mod:`millrace.kernel.event_records` is the way back.

The reference is the authority: what is rare, unknown or damaged, and whatever raises there, is not done here.
``take`` stops in front of such an event, before anything of it is noted. So errors are the reference's as well.

Memory is read through :c:type:`Source` and written through :c:type:`Output` alone, whose functions check every
access; no pointer outlives the call that took it from its object.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memset

from millrace.kernel.event_records cimport CHECKSUM_LENGTH, ROWS_FLAGS, ROWS_TABLE_ID, NewHead, put_head, remember
from millrace.kernel.reading cimport (
    Source,
    Span,
    is_ascii,
    little,
    read_lenenc,
    read_span,
    read_uint,
    skip,
    slice_of,
    source_of,
)
from millrace.kernel.records cimport Record, RecordBlock, look_at
from millrace.kernel.tuples cimport new_object, set_slot, tuple_of
from millrace.kernel.writing cimport (
    Output,
    Text,
    put,
    put_byte,
    put_long,
    put_number,
    put_object,
    put_signed,
    put_sized,
    put_sized_slice,
    put_slice,
)

from types import MemberDescriptorType
from zlib import crc32

from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events.query import StatusVariables
from millrace.binlog.grammar import TRANSITIONS, Effect, Mode, Role
from millrace.binlog.header import EventHeader
from millrace.binlog.statement import classify
from millrace.binlog.transaction import CONTROL_HEADS, STATEMENT_ROLES, TransactionEnd, TransactionStep

__all__ = ["EventRecordWriter", "LogRecordMaker", "RawTaker"]

cdef enum:
    HEADER_LENGTH = 19
    MOST_FIELDS = 48
    MOST_VARIABLES = 64
    NAME_LIMIT = 512
    # How much is remembered: so many things, each of so many bytes at most.
    REMEMBERED = 1024
    REMEMBERED_SIZE = 8192

    MINUS = 45
    COLON = 58

    # Up to so many bytes the checksum is computed here, where a call of Python takes longer than that.
    SHORT = 256

cdef uint32_t CRC32_RESIDUE = 0x2144DF1C
cdef const char* DIGITS = b"0123456789abcdef"

# generated: Layout
cdef enum Layout:
    LAYOUT_NONE = 0
    LAYOUT_FIELDS = 1
    LAYOUT_GTID = 2
    LAYOUT_MARIADB_GTID = 3
    LAYOUT_QUERY = 4
    LAYOUT_TABLE_MAP = 5
    LAYOUT_ROWS = 6
# end

# generated: Wire
cdef enum Wire:
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
    WIRE_COUNTING_BYTES16 = 21
    WIRE_LEFT = 22
# end

# generated: Condition
cdef enum Condition:
    CONDITION_OPTIONAL = 1
    CONDITION_HIDDEN = 2
    CONDITION_ABSENT = 4
    CONDITION_WHEN = 8
    CONDITION_REMAINS = 16
    CONDITION_SIZED = 32
    CONDITION_BITS = 64
# end

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
    """Return the effect of a role in a mode, and the mode that follows; nothing for what is neither."""
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
    bint begins  # ``new_name`` is that of the transaction
    int ends
    int64_t ordinal
    int mode


cdef class Tracker:
    """Where the transaction stands, as the TransactionTracker knows it; ``name`` is its id."""

    cdef Output name
    cdef Output new_name
    cdef object _log_file
    cdef bytes _file
    cdef object _text
    cdef object _new_text
    cdef int64_t _ordinal
    cdef int _mode
    cdef object _xid

    def __dealloc__(self):
        free(self.name.data)
        free(self.new_name.data)

    cdef int use_file(self, str log_file) except -1:
        # For names of transactions, in which it stands as it is; what is not ASCII is left to the reference.
        self._log_file = log_file
        self._file = log_file.encode("ascii", "replace")
        return 0

    cdef bint use(self, tuple standing) except -1:
        """Continue from where a TransactionTracker stands; False where the reference must."""
        transaction, self._ordinal, self._mode, self._xid = standing
        if transaction is None:
            self._text = None
            self.name.size = 0
        elif self._text is None or transaction != self._text:
            if not transaction.isascii() or len(transaction) > NAME_LIMIT or not transaction:
                return False
            self.name.size = 0
            if put_object(&self.name, transaction.encode("ascii")):
                raise MemoryError()
            self._text = transaction
        return True

    cdef object text(self):
        """Return the name of the transaction; None where there is none."""
        if self._text is None and self.name.size:
            self._text = PyUnicode_DecodeASCII(<const char*> self.name.data, self.name.size, NULL)
        return self._text

    cdef object text_of(self, const Step* step):
        """Return the name of the transaction that a step is in; None where it is in none."""
        if not step.known:
            return None
        if not step.begins:
            return self.text()
        self._new_text = PyUnicode_DecodeASCII(<const char*> self.new_name.data, self.new_name.size, NULL)
        return self._new_text

    cdef tuple standing(self):
        return self.text(), self._ordinal, self._mode, self._xid

    cdef bint step(self, Plan* plan, Source* event, uint64_t server_id, int64_t position, bint ends_statement,
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
            if self.new_name.bad:
                raise MemoryError()
        if step.known and entry & ENDS:
            step.ends = END_ROLLBACK if role == ROLE_ROLLBACK else END_COMMIT
        return not source.bad

    cdef void note(self, Step* step) noexcept:
        if not step.known:
            return
        if step.begins:
            self.name, self.new_name = self.new_name, self.name
            self._text, self._xid = self._new_text, None
        if step.ends != END_NONE:
            self.name.size = 0
            self._text = self._xid = None
            self._ordinal, self._mode = 0, MODE_NONE
        else:
            self._ordinal, self._mode = step.ordinal + 1, step.mode

    cdef Output* _begin_name(self) noexcept:
        self.new_name.size, self.new_name.bad = 0, False
        self._new_text = None
        return &self.new_name

    cdef bint _name_place(self, int64_t position):
        # file:position; a file whose name is not ASCII is the reference's.
        if PyBytes_GET_SIZE(self._file) + 21 > NAME_LIMIT or not self._log_file.isascii():
            return False
        put_object(self._begin_name(), self._file)
        put_byte(&self.new_name, COLON)
        put_signed(&self.new_name, position)
        return True

    cdef void _name_mariadb_gtid(self, uint64_t domain, uint64_t server_id, uint64_t number) noexcept:
        cdef Output* name = self._begin_name()
        put_number(name, domain, False)
        put_byte(name, MINUS)
        put_number(name, server_id, False)
        put_byte(name, MINUS)
        put_number(name, number, False)

    cdef void _name_gtid(self, Source* source) noexcept:
        # The uuid, a colon, and the number, which has a sign.
        cdef Output* name = self._begin_name()
        cdef int index
        cdef uint64_t byte
        for index in range(16):
            byte = read_uint(source, 1)
            put_byte(name, DIGITS[byte >> 4])
            put_byte(name, DIGITS[byte & 15])
            if index == 3 or index == 5 or index == 7 or index == 9:
                put_byte(name, MINUS)
        put_byte(name, COLON)
        put_signed(name, <int64_t> read_uint(source, 8))


cdef struct Header:
    # The common header of an event, as long as it always is.
    uint64_t timestamp
    int type_code
    uint64_t server_id
    uint64_t event_size
    uint64_t next_position
    uint64_t flags


cdef inline Header read_header(Source* source) noexcept nogil:
    cdef Header header
    header.timestamp = read_uint(source, 4)
    header.type_code = <int> read_uint(source, 1)
    header.server_id = read_uint(source, 4)
    header.event_size = read_uint(source, 4)
    header.next_position = read_uint(source, 4)
    header.flags = read_uint(source, 2)
    return header


cdef uint32_t[8][256] CRC32_OF


cdef int fill_crc32() except -1:
    """Compute what each byte makes of a checksum, with 0 to 7 bytes after it."""
    cdef int byte, bit, after
    cdef uint32_t crc
    for byte in range(256):
        crc = byte
        for bit in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        CRC32_OF[0][byte] = crc
    for after in range(1, 8):
        for byte in range(256):
            crc = CRC32_OF[after - 1][byte]
            CRC32_OF[after][byte] = CRC32_OF[0][crc & 255] ^ crc >> 8
    return 0


fill_crc32()


cdef uint32_t short_crc32(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Compute the CRC-32 of zlib, eight bytes at a time."""
    cdef uint32_t crc = 0xFFFFFFFF
    cdef uint64_t eight
    cdef Py_ssize_t at = 0
    while size - at >= 8:
        eight = little(data + at, 8) ^ crc
        crc = CRC32_OF[7][eight & 255] ^ CRC32_OF[6][eight >> 8 & 255]
        crc ^= CRC32_OF[5][eight >> 16 & 255] ^ CRC32_OF[4][eight >> 24 & 255]
        crc ^= CRC32_OF[3][eight >> 32 & 255] ^ CRC32_OF[2][eight >> 40 & 255]
        crc ^= CRC32_OF[1][eight >> 48 & 255] ^ CRC32_OF[0][eight >> 56]
        at += 8
    for at in range(at, size):
        crc = CRC32_OF[0][(crc ^ data[at]) & 255] ^ crc >> 8
    return ~crc


cdef bint cut_checksum(Source* source) except -1:
    """Have the source of an event's bytes end before the checksum; False where that is wrong, or not there."""
    cdef uint32_t found
    if source.end < HEADER_LENGTH + CHECKSUM_LENGTH:
        return False
    if source.end <= SHORT:
        found = short_crc32(source.data, source.end)
    else:
        found = crc32(PyMemoryView_FromMemory(<char*> source.data, source.end, PyBUF_READ))
    if found != CRC32_RESIDUE:
        return False
    source.end -= CHECKSUM_LENGTH
    return True


cdef class PlannedLog:
    """What a log is read by: plans of its format, by type code, and where its transaction stands.

    ``plans(log_format)`` gives of each type None, or (layout, role, post-header length, fields, …); what follows is
    for :meth:`_use_names`.
    """

    cdef object _make_plans
    cdef Plan _plans[256]
    cdef object _format
    cdef object _codecs
    cdef bint _checksums
    cdef object _decode_table_map
    cdef Tracker _tracker

    # What comes again and again: by its bytes on the wire, what the reference made of it.
    cdef dict _table_maps
    cdef dict _statuses

    def standing(self) -> tuple:
        """Return where the transaction stands, as the TransactionTracker does."""
        return self._tracker.standing()

    cdef bint _use_stream(self, stream) except -1:
        """Use the format of a stream; False where the reference must read it."""
        log_format = stream.format
        if log_format is None or log_format.header_length != HEADER_LENGTH or stream.encryption is not None:
            return False
        if log_format is not self._format:
            if log_format.codecs is not self._codecs:
                self._use_codecs(log_format)
            self._checksums = log_format.checksum == 1
            self._format = log_format
        return True

    cdef int _use_codecs(self, log_format) except -1:
        cdef int code
        plans = self._make_plans(log_format)
        self._format = self._codecs = None
        for code in range(256):
            self._plans[code].layout = LAYOUT_NONE
            if plans[code] is None:
                continue
            layout, role, known, fields, *names = plans[code]
            if not 0 <= known < 256:
                raise ValueError("an event that has no plan")
            self._use_names(code, fields, names)
            self._plans[code].role, self._plans[code].known = role, known
            self._plans[code].count = take_fields(self._plans[code].fields, MOST_FIELDS, fields)
            self._plans[code].layout = layout
            if layout == LAYOUT_TABLE_MAP:
                self._decode_table_map = log_format.codecs[code][0]
        self._table_maps.clear()
        self._codecs = log_format.codecs
        return 0

    cdef int _use_names(self, int code, fields, names) except -1:
        """Take what a plan has of an event beside how it is read."""
        raise NotImplementedError


cdef class EventRecordWriter(PlannedLog):
    """Makes records of the events topic of raw events, as long as these are of the ordinary kinds.

    ``plans`` are those of :class:`PlannedLog`, followed by the type's name and the union's branch.
    ``variables`` does so for the status variables: (code, fields). ``write_text``, ``write_table_map`` and
    ``write_variables`` are the reference's, for what is not plain, and give bytes of Avro.

    After :meth:`take`, ``taken_bytes`` is the size of the events that were taken, ``written_bytes`` that of
    their records, and :meth:`standing` tells where the transaction stands.
    """

    cdef readonly Py_ssize_t taken_bytes
    cdef readonly Py_ssize_t written_bytes

    cdef object _write_text
    cdef object _write_table_map
    cdef object _write_variables
    cdef bytes _prefix
    cdef list _names
    cdef list _branches
    cdef Variable _variables[256]
    cdef int _variable_count
    cdef Output _out

    # Where the log is read.
    cdef object _scope
    cdef bytes _log_file_text
    cdef int64_t _epoch

    cdef object _last_table_map
    cdef tuple _last_table

    def __dealloc__(self):
        free(self._out.data)

    def __init__(self, bytes prefix not None, plans, list variables not None, write_text, write_table_map,
                 write_variables):
        cdef int code, place
        self._prefix = prefix
        self._make_plans = plans
        self._write_text, self._write_table_map = write_text, write_table_map
        self._write_variables = write_variables
        self._table_maps, self._statuses = {}, {}
        self._names, self._branches = [b""] * 256, [b""] * 256
        self._log_file_text = b""
        self._tracker = Tracker()
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

    cdef int _use_names(self, int code, fields, names) except -1:
        self._names[code], self._branches[code] = names
        return 0

    cdef int _use_scope(self, tuple scope) except -1:
        epoch, log_file = scope
        self._epoch = epoch
        self._tracker.use_file(log_file)
        self._log_file_text = self._write_text(log_file)
        self._scope = scope
        return 0

    # -- the batch -------------------------------------------------------------------------------------

    def take(self, records not None, Py_ssize_t index, bytes head not None, tuple scope not None, stream,
             tuple standing not None, Py_ssize_t limit, Py_ssize_t most, made not None):
        """Take the raw records from ``index`` on; give the index of the first that is not taken.

        ``head`` is a key without its position, whose epoch and file those of all must be. What is written is appended
        to ``made``: a list, as millrace.stage.OutputRecord, or a RecordBlock, with the offsets that the raw records
        have. None is larger than ``limit``, and it ends beyond ``most`` bytes. ``stream`` is the StreamState, which is
        kept; ``standing`` where the TransactionTracker stands.
        """
        cdef Py_ssize_t count = len(records)
        cdef Record record
        cdef RecordBlock block = <RecordBlock> made if type(made) is RecordBlock else None
        cdef Output* out = &self._out if block is None else block.own(0)
        cdef dict table_maps
        cdef Py_ssize_t at
        self.taken_bytes = self.written_bytes = 0
        if block is None and type(made) is not list:
            raise TypeError("events go to a list or a block")
        if block is not None and type(records) is RecordBlock and (<RecordBlock> records).memory is block.memory:
            raise ValueError("what is read is not written to")
        if not self._use_stream(stream):
            return index
        if scope != self._scope:
            self._use_scope(scope)
        if not self._tracker.use(standing):
            return index
        table_maps = stream.table_maps
        while index < count and self.written_bytes <= most:
            if not look_at(records, index, &record):
                break
            if block is None:
                out.size = 0
            at, out.bad = out.size, False
            if not self._take_one(head, &record, table_maps, limit, out, made):
                out.size = at
                break
            self.taken_bytes += record.value.end
            index += 1
        if block is not None:
            block.fit()
        return index

    cdef bint _take_one(self, bytes head, const Record* record, dict table_maps, Py_ssize_t limit, Output* out,
                        made) except -1:
        """Make the record of one event and note what follows from it; False where it is for the reference.

        It is written to ``out``, which is the memory of ``made`` where that is a block.
        """
        cdef Source source = record.value
        cdef Py_ssize_t end = source.end
        cdef int64_t position = position_of(head, &record.key)
        cdef Header event = read_header(&source)
        if source.bad or position < 0 or event.event_size != <uint64_t> end:
            return False
        cdef Plan* plan = &self._plans[event.type_code]
        if plan.layout == LAYOUT_NONE or (self._checksums and not cut_checksum(&source)):
            return False
        # What the tracker makes of it, and the table, which must be known in front of the event.
        cdef Step step
        cdef tuple table = None
        cdef tuple table_map = None
        cdef int64_t table_id = 0
        cdef bint ends_statement = False
        cdef Py_ssize_t at = out.size
        if plan.layout == LAYOUT_TABLE_MAP:
            table_map = self._table_map(&source, plan)
            if table_map is None:
                return False
            table = <tuple> table_map[3]
        elif plan.layout == LAYOUT_ROWS:
            table_id = <int64_t> read_number(&source, plan.fields[<int> ROWS_TABLE_ID].wire)
            ends_statement = read_number(&source, plan.fields[<int> ROWS_FLAGS].wire) & 1
            source.at = HEADER_LENGTH
            table = self._table_of(table_maps.get(table_id))
        if source.bad or not self._tracker.step(plan, &source, event.server_id, position, ends_statement, &step):
            return False
        cdef NewHead new
        memset(&new, 0, sizeof(NewHead))
        new.log_file, new.position = text_of(self._log_file_text), position
        new.type, new.type_code = text_of(<bytes> self._names[event.type_code]), event.type_code
        new.timestamp, new.server_id = <int64_t> event.timestamp, <int64_t> event.server_id
        new.event_size, new.next_position = <int64_t> event.event_size, <int64_t> event.next_position
        new.flags, new.epoch = <int64_t> event.flags, self._epoch
        if self._checksums:  # which was looked at
            new.checksum.data, new.checksum.size = source.data + end - CHECKSUM_LENGTH, CHECKSUM_LENGTH
        self._add_step(&new, &step)
        if table is not None:
            new.database, new.table = text_of(<bytes> table[0]), text_of(<bytes> table[1])
        put(out, record.key.data, record.key.end)
        put_object(out, b":0")
        cdef Py_ssize_t start = out.size
        put_object(out, self._prefix)
        put_head(out, &new)
        put_object(out, <bytes> self._branches[event.type_code])
        if plan.layout == LAYOUT_TABLE_MAP:
            put_object(out, <bytes> table_map[2])
        else:
            source.bad |= source.end - source.at < plan.known
            self._put_fields(out, &source, plan.fields, plan.count)
            source.bad |= source.at != source.end
        if source.bad or out.bad or out.size - start > limit:
            return False
        self.written_bytes += out.size - start
        if type(made) is RecordBlock:
            (<RecordBlock> made).end_record(record.offset, record.timestamp, at, start - at)
        else:
            key = PyBytes_FromStringAndSize(<const char*> out.data + at, start - at)
            value = PyBytes_FromStringAndSize(<const char*> out.data + start, out.size - start)
            (<list> made).append((key, value, record.timestamp, None))
        # Nothing can go wrong any more: note what follows from the event.
        if table_map is not None:
            table_maps[table_map[1]] = table_map[0]
        elif ends_statement:
            table_maps.clear()
        self._tracker.note(&step)
        return True

    cdef void _add_step(self, NewHead* head, const Step* step) noexcept:
        cdef const Output* name = &self._tracker.new_name if step.begins else &self._tracker.name
        if step.known:
            head.transaction.data, head.transaction.size = name.data, name.size
        head.ordinal, head.begins = step.ordinal, step.begins
        if step.ends != END_NONE:
            head.ends = text_of(b"\x0ccommit" if step.ends == END_COMMIT else b"\x10rollback")

    # -- what has its own layout -----------------------------------------------------------------------

    cdef tuple _table_map(self, const Source* source, Plan* plan):
        """Return (event, table_id, its bytes in Avro, those of database and table) of a table map."""
        cdef bytes content = slice_of(source, HEADER_LENGTH, source.end - HEADER_LENGTH)
        known = self._table_maps.get(content)
        if known is not None:
            # Rows follow, of this table as a rule.
            self._last_table_map, self._last_table = <object> (<tuple> known)[0], <tuple> (<tuple> known)[3]
            return <tuple> known
        try:
            event = self._decode_table_map(content, 0, len(content), plan.known)
        except BinlogError:
            return None
        made = event, event.table_id, self._write_table_map(event), self._table_of(event)
        remember(self._table_maps, content, made, REMEMBERED, REMEMBERED_SIZE)
        return made

    cdef tuple _table_of(self, table_map):
        """Return database and table of a table map in Avro."""
        if table_map is None:
            return None
        if table_map is not self._last_table_map:
            self._last_table = self._write_text(table_map.database), self._write_text(table_map.table)
            self._last_table_map = table_map
        return self._last_table

    cdef bint _put_status(self, Output* out, Source* source, Py_ssize_t at, Py_ssize_t size) except -1:
        """Write status variables; what of them has no plan is written by the reference, and remembered."""
        cdef Py_ssize_t start = out.size
        cdef bytes block, written
        if self._put_variables(out, source, at, size):
            return True
        out.size = start
        block = slice_of(source, at, size)
        written = <bytes> self._statuses.get(block)
        if written is None:
            try:
                written = self._write_variables(block)
            except BinlogError:
                return False
            remember(self._statuses, block, written, REMEMBERED, REMEMBERED_SIZE)
        put_object(out, written)
        return True

    cdef bint _put_variables(self, Output* out, const Source* block, Py_ssize_t at, Py_ssize_t size) except -1:
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
        put_long(out, count)
        for index in range(count):
            put_byte(out, codes[index])
        put_byte(out, 0)  # unknown
        for place in range(self._variable_count):
            code = order[place]
            if code < 0:
                put_byte(out, 0)
                continue
            put_byte(out, 2)
            self._put_fields(out, &found[place], self._variables[code].fields, self._variables[code].count)
            if found[place].bad or found[place].at != found[place].end:
                return False
        return True

    cdef int _put_text(self, Output* out, const Source* source, Py_ssize_t at, Py_ssize_t size) except -1:
        """Write a name: as it is where it is ASCII, else as the reference does."""
        cdef bytes raw
        if source.bad:
            return 0
        if is_ascii(source, at, size):
            put_sized_slice(out, source, at, size)
        else:
            raw = slice_of(source, at, size)
            put_object(out, self._write_text(raw.decode("utf-8", "surrogateescape")))
        return 0

    cdef int _put_fields(self, Output* out, Source* source, const Field* fields, int count) except -1:
        """Write fields as their plans say, each read after those before it; a hidden one is only read."""
        cdef uint64_t numbers[MOST_FIELDS]
        cdef const Field* field
        cdef uint64_t number
        cdef int index
        for index in range(count):
            field = &fields[index]
            numbers[index] = 0
            if field.condition & (CONDITION_OPTIONAL | CONDITION_ABSENT):
                if is_missing(field, source, numbers[field.place]):
                    put_byte(out, 0)  # null, or nothing where what is absent is empty
                    continue
                put_byte(out, 2)
            if is_sized(field.wire):
                self._put_sized_field(out, source, field, numbers[field.place])
                continue
            number = numbers[index] = read_number(source, field.wire)
            if not field.condition & CONDITION_HIDDEN:
                put_long(out, <int64_t> (number & ~field.drop))
        return 0

    cdef int _put_sized_field(self, Output* out, Source* source, const Field* field, uint64_t length) except -1:
        cdef int wire = field.wire
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t at = take_sized(source, field, length, &size)
        if source.bad:
            return 0
        if wire == WIRE_STATUS:
            source.bad |= not self._put_status(out, source, at, size)
        elif wire == WIRE_REST_BYTES or wire == WIRE_BYTES16 or wire == WIRE_COUNTING_BYTES16:
            put_sized_slice(out, source, at, size)
        else:
            self._put_text(out, source, at, size)
        return 0


cdef inline bint is_missing(const Field* field, const Source* source, uint64_t asked) noexcept nogil:
    # Whether a field that need not be there is not; ``asked`` is the number that says so, where one does.
    return field.condition & CONDITION_ABSENT != 0 or (
        field.condition & CONDITION_WHEN and not asked & field.mask
    ) or (field.condition & CONDITION_REMAINS and source.at >= source.end)


cdef inline bint is_sized(int wire) noexcept nogil:
    return wire in (WIRE_REST_BYTES, WIRE_REST_TEXT, WIRE_TEXT8, WIRE_TEXT8_NUL, WIRE_BYTES16, WIRE_STATUS,
                    WIRE_COUNTING_BYTES16)


cdef Py_ssize_t take_sized(Source* source, const Field* field, uint64_t length, Py_ssize_t* found) noexcept nogil:
    """Step over a field that is no number and give where its content begins, and in ``found`` how large that is."""
    cdef int wire = field.wire
    cdef Py_ssize_t at, size = source.end - source.at
    if field.condition & CONDITION_SIZED:
        size = <Py_ssize_t> length
    elif field.condition & CONDITION_BITS:
        size = <Py_ssize_t> (length // 8 + (length % 8 != 0))
    elif wire == WIRE_BYTES16:
        size = 16
    elif wire == WIRE_TEXT8 or wire == WIRE_TEXT8_NUL:
        size = <Py_ssize_t> read_uint(source, 1)
    elif wire == WIRE_COUNTING_BYTES16:
        size = <Py_ssize_t> read_uint(source, 2) - 2
    at = skip(source, size)
    if wire == WIRE_TEXT8_NUL and read_uint(source, 1) != 0:
        source.bad = True
    found[0] = size
    return at


cdef uint64_t read_number(Source* source, int wire) noexcept nogil:
    cdef Py_ssize_t at = source.at
    cdef uint64_t number
    if wire <= 8:
        return read_uint(source, wire)
    if wire == WIRE_INT64:
        return read_uint(source, 8)
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


cdef void skip_field(Source* source, int wire) noexcept nogil:
    if wire <= 8:
        skip(source, wire)
    elif wire == WIRE_INT64:
        skip(source, 8)
    elif wire == WIRE_TEXT8:
        skip(source, <Py_ssize_t> read_uint(source, 1))
    elif wire == WIRE_TEXT8_NUL:
        skip(source, <Py_ssize_t> read_uint(source, 1) + 1)
    else:
        source.bad = True


cdef int64_t position_of(bytes head, const Source* key) noexcept:
    """Read the position of a key with the epoch and file of ``head``; -1 where it has others, or is spelled oddly.

    In front of both stands the server on which the event originated, which may be any.
    """
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head)
    cdef Py_ssize_t end = key.end
    cdef const char* place = PyBytes_AS_STRING(head)
    cdef const uint8_t* text = key.data
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


cdef Text text_of(bytes written) noexcept:
    """Return what a string of Avro holds."""
    cdef Source source = source_of(written, 0, PyBytes_GET_SIZE(written))
    cdef Span span = read_span(&source)
    return Text(source.data + span.at, span.size)


# ------------------------------------------------------------------------------------------ making objects

cdef class Form:
    """Makes values (:mod:`millrace.binlog.values`) of one class, of what each of these fields has."""

    cdef object kind
    cdef list slots  # of each field its slot; None for what has no place in the class

    def __init__(self, kind, names):
        self.kind = kind
        self.slots = [None if name is None else getattr(kind, name) for name in names]
        for slot in self.slots:
            if slot is not None and not (
                type(slot) is MemberDescriptorType and issubclass(kind, slot.__objclass__)
            ):
                raise TypeError(f"{kind} has no such slot")

    cdef object make(self, tuple values):
        cdef Py_ssize_t index
        made = new_object(self.kind)
        for index in range(len(values)):
            set_slot(made, self.slots[index], values[index])
        return made


cdef Form HEADER = Form(
    EventHeader,
    ("timestamp", "type_code", "server_id", "event_size", "next_position", "flags", "extra_headers"),
)
cdef Form DECODED = Form(BinlogEvent, ("header", "event", "checksum", "post_header_extra", "table_map"))
cdef Form STEP = Form(
    TransactionStep, ("transaction", "ordinal", "begins", "ends", "xid", "statement", "interrupts")
)
cdef tuple ENDINGS = (None, TransactionEnd.COMMIT, TransactionEnd.ROLLBACK)


cdef class LogRecordMaker(PlannedLog):
    """Makes records of the events of a log, as long as these are of the ordinary kinds.

    ``record`` is millrace.binlog_command.records.LogRecord. ``plans`` are those of :class:`PlannedLog`, followed by
    the class of the event, the names of the fields, and what each has where it is absent.

    What is taken is read so strictly that, encoded, it has the same bytes; it is marked as ``exact``.

    After :meth:`take`, ``gtid`` is that of the open transaction, and :meth:`standing` tells where this stands.
    """

    cdef readonly object gtid

    cdef object _record
    cdef list _forms
    cdef list _absent
    cdef object _file

    def __init__(self, type record not None, plans):
        if not issubclass(record, tuple) or record.__basicsize__ != tuple.__basicsize__:
            raise TypeError("records are tuples")
        self._record, self._make_plans = record, plans
        self._forms, self._absent = [None] * 256, [None] * 256
        self._tracker = Tracker()
        self._table_maps, self._statuses = {}, {}

    cdef int _use_names(self, int code, fields, names) except -1:
        kind, names, absent = names
        if not len(fields) == len(names) == len(absent):
            raise ValueError("an event that has no plan")
        self._forms[code], self._absent[code] = Form(kind, names), absent
        return 0

    def take(self, list events not None, Py_ssize_t index, Py_ssize_t most, str path not None, str file not None,
             stream, tuple standing not None, gtid):
        """Return the records of the events from ``index`` on, up to ``most``, that can be taken.

        ``events`` are of millrace.binlog_command.records.RawEvent; those of another ``path`` or ``file`` are not
        taken. ``stream`` is the StreamState, which is kept; ``standing`` where the TransactionTracker stands, and
        ``gtid`` that of the open transaction.
        """
        cdef list made = []
        cdef Py_ssize_t end = min(len(events), index + most)
        self.gtid = gtid
        if not self._use_stream(stream):
            return made
        if self._file is None or file != self._file:
            self._tracker.use_file(file)
            self._file = file
        if not self._tracker.use(standing):
            return made
        while index < end:
            raw = events[index]
            record = self._take_one(<tuple> raw, path, file, stream) if isinstance(raw, tuple) else None
            if record is None:
                break
            made.append(record)
            index += 1
        return made

    cdef object _take_one(self, tuple raw, str path, str file, stream):
        """Make the record of one event and note what follows from it; None where it is for the reference."""
        cdef bytes data = raw[3]
        cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
        cdef Source source = source_of(data, 0, end)
        cdef int64_t position = raw[2]
        cdef Header head = read_header(&source)
        cdef Step step
        cdef bint ends_statement = False
        if source.bad or head.event_size != <uint64_t> end or raw[0] != path or raw[1] != file:
            return None
        cdef Plan* plan = &self._plans[head.type_code]
        if plan.layout == LAYOUT_NONE or (self._checksums and not cut_checksum(&source)):
            return None
        table_map = statement = None
        if plan.layout == LAYOUT_ROWS:
            table_map = (<dict> stream.table_maps).get(read_number(&source, plan.fields[<int> ROWS_TABLE_ID].wire))
            ends_statement = read_number(&source, plan.fields[<int> ROWS_FLAGS].wire) & 1
            source.at = HEADER_LENGTH
        if source.bad or not self._tracker.step(plan, &source, head.server_id, position, ends_statement, &step):
            return None
        if step.begins and self._tracker.name.size:
            return None  # it interrupts another
        if plan.layout == LAYOUT_TABLE_MAP:
            event = self._table_map(data, source.end, plan)
        else:
            event = self._event(data, &source, plan, head.type_code)
        if event is None:
            return None
        if plan.layout == LAYOUT_QUERY:
            statement = classify(event.query)
        elif plan.layout == LAYOUT_TABLE_MAP:
            try:
                stream.observe(event)
            except BinlogError:
                return None
        # Nothing can go wrong any more: note what follows from the event.
        if ends_statement:
            (<dict> stream.table_maps).clear()
        transaction = self._tracker.text_of(&step)
        self._tracker.note(&step)
        if step.begins:
            self.gtid = transaction if plan.role in (ROLE_GTID, ROLE_GROUP_GTID) else None
        header = HEADER.make(
            (head.timestamp, head.type_code, head.server_id, head.event_size, head.next_position, head.flags, b"")
        )
        checksum = data[source.end:end] if self._checksums else None
        return tuple_of(self._record, (
            path, file, raw[2], data, 0,
            DECODED.make((header, event, checksum, b"", table_map)),
            self.gtid if step.known else None,
            STEP.make((transaction, step.ordinal, step.begins, ENDINGS[step.ends], None, statement, None)),
            stream,
            True,
        ))

    cdef object _table_map(self, bytes data, Py_ssize_t end, const Plan* plan):
        cdef bytes content = data[HEADER_LENGTH:end]
        event = self._table_maps.get(content)
        if event is None:
            try:
                event = self._decode_table_map(data, HEADER_LENGTH, end, plan.known)
                if event.encode_fields(plan.known) != content:
                    return None
            except BinlogError:
                return None
            remember(self._table_maps, content, event, REMEMBERED, REMEMBERED_SIZE)
        return event

    cdef object _event(self, bytes data, Source* source, const Plan* plan, int type_code):
        """Read an event by the plans of its fields, each after those before it."""
        cdef uint64_t numbers[MOST_FIELDS]
        cdef Form form = self._forms[type_code]
        cdef list absent = self._absent[type_code]
        cdef const Field* field
        cdef uint64_t number
        cdef int index
        if source.end - source.at < plan.known:
            return None
        made = new_object(form.kind)
        for index in range(plan.count):
            field = &plan.fields[index]
            numbers[index] = 0
            if field.condition & (CONDITION_OPTIONAL | CONDITION_ABSENT) and \
                    is_missing(field, source, numbers[field.place]):
                value = absent[index]
            elif is_sized(field.wire):
                value = self._sized(data, source, field, numbers[field.place])
            else:
                numbers[index] = read_number(source, field.wire)
                number = numbers[index] & ~field.drop
                value = <int64_t> number if field.wire == WIRE_INT64 else number
            if source.bad:
                return None
            if not field.condition & CONDITION_HIDDEN:
                set_slot(made, form.slots[index], value)
        return None if source.bad or source.at != source.end else made

    cdef object _sized(self, bytes data, Source* source, const Field* field, uint64_t length):
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t at = take_sized(source, field, length, &size)
        if source.bad:
            return None
        if field.wire == WIRE_STATUS:
            value = self._status(data[at:at + size])
            source.bad |= value is None
            return value
        if field.wire == WIRE_REST_BYTES or field.wire == WIRE_BYTES16 or field.wire == WIRE_COUNTING_BYTES16:
            return slice_of(source, at, size)
        if is_ascii(source, at, size):
            return PyUnicode_DecodeASCII(<const char*> source.data + at, size, NULL)
        return slice_of(source, at, size).decode("utf-8", "surrogateescape")

    cdef object _status(self, bytes block):
        made = self._statuses.get(block)
        if made is None:
            try:
                made, _ = StatusVariables.read(block, 0, len(block))
                if made.write() != block:
                    return None
            except BinlogError:
                return None
            remember(self._statuses, block, made, REMEMBERED, REMEMBERED_SIZE)
        return made


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
    cdef Output _out

    def __dealloc__(self):
        free(self._out.data)

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
        cdef Header event
        cdef int64_t timestamp_ms
        cdef int role
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
            event = read_header(&source)
            role = self._roles[event.type_code]
            if source.bad or self._left[event.type_code] or event.event_size != <uint64_t> end or end > limit:
                break
            if event.next_position != (<uint64_t> (self.position + end) & 0xFFFFFFFF) and (
                event.next_position != 0 or not zero_allowed
            ):
                break
            if checksums and not cut_checksum(&source):
                break
            if role != ROLE_PART and not self._note(role, event.server_id, &source):
                break
            timestamp_ms = <int64_t> event.timestamp * 1000
            if timestamp_ms < self.last_ms:
                timestamp_ms = self.last_ms
            if timestamp_ms > now_ms:
                timestamp_ms = now_ms
            self.last_ms = timestamp_ms
            out.append((self._key(event.server_id, prefix), data, timestamp_ms, None))
            self.position += end
            self.size += end
            index += 1
        return index

    cdef bytes _key(self, uint64_t server_id, bytes prefix):
        self._out.size, self._out.bad = 0, False
        put_number(&self._out, server_id, False)
        put_object(&self._out, prefix)
        put_number(&self._out, <uint64_t> self.position, False)
        if self._out.bad:
            raise MemoryError()
        return PyBytes_FromStringAndSize(<const char*> self._out.data, self._out.size)

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
