# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""Records from and to librdkafka in batches: without an object of Python, or a call, for each of them.

The clients are those of confluent_kafka, which does everything else with them. What is called here is librdkafka's
public interface (``rdkafka.h``), in the very library that confluent_kafka is linked with: :func:`load` finds it
through its extension module. confluent_kafka does not give away the handle of a client. librdkafka does, to a plugin
(``plugin.library.paths``), and this module is one: ``conf_init`` asks to be told of the client that is made.

The callbacks of a client are functions of confluent_kafka, and only its own calls may serve them. So a partition that
is read gets a queue of its own, with its records and errors and nothing else; all else is left in the consumer's. Of
those errors some go to the consumer's error callback, which is replaced therefore by one that does nothing, as
confluent_kafka's does where no ``error_cb`` is configured: there must be none. Of records that brokers refuse an
interceptor takes note, which needs no Python.

librdkafka has one request per partition on its way where the producer is idempotent, and until the answer comes its
thread polls without a pause for as long as another batch is ready: a core is busy with nothing. So a partition gets
no more records while those without an answer fill nearly two batches, and a flush, which makes every batch ready, waits
until they fill less than one: then no request is on its way. The interceptor tells when an answer has come.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.unicode cimport PyUnicode_AsUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport strcmp, strcpy, strlen

from millrace.kernel.records cimport RecordBlock

__all__ = ["Handle", "NotUsableError", "PartitionReader", "RecordWriter", "load", "made"]

cdef extern from "<dlfcn.h>" nogil:
    int RTLD_NOLOAD
    int RTLD_NOW
    void* dlopen(const char* path, int mode)
    void* dlsym(void* handle, const char* name)

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdint.h>
    #include <time.h>
    static pthread_mutex_t refusals_lock = PTHREAD_MUTEX_INITIALIZER;
    static __thread int producing = 0;  /* what fails in a call is said by the call */

    /* Bytes of a partition that have no answer; who waits for less of them is woken. */
    static pthread_mutex_t answers_lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t answers = PTHREAD_COND_INITIALIZER;

    static int64_t add_waiting(int64_t *waiting, int64_t size) {
        return __atomic_add_fetch(waiting, size, __ATOMIC_SEQ_CST);
    }

    static int64_t waiting_of(int64_t *waiting) {
        return __atomic_load_n(waiting, __ATOMIC_SEQ_CST);
    }

    static void take_answer(int64_t *waiting, int64_t size, int64_t batch, int64_t most) {
        int64_t left = __atomic_sub_fetch(waiting, size, __ATOMIC_SEQ_CST);
        if ((left < most && left + size >= most) || (left < batch && left + size >= batch)) {
            pthread_mutex_lock(&answers_lock);
            pthread_cond_broadcast(&answers);
            pthread_mutex_unlock(&answers_lock);
        }
    }

    static int wait_for_answers(int64_t *waiting, int64_t bound, int64_t wait_ms) {
        struct timespec until;
        int ended = 0;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += wait_ms / 1000;
        until.tv_nsec += wait_ms % 1000 * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec += 1;
            until.tv_nsec -= 1000000000;
        }
        pthread_mutex_lock(&answers_lock);
        while (waiting_of(waiting) >= bound && !ended)
            ended = pthread_cond_timedwait(&answers, &answers_lock, &until);
        pthread_mutex_unlock(&answers_lock);
        return waiting_of(waiting) < bound;
    }
    """
    ctypedef struct pthread_mutex_t:
        pass
    pthread_mutex_t refusals_lock
    int producing
    int pthread_mutex_lock(pthread_mutex_t* lock) nogil
    int pthread_mutex_unlock(pthread_mutex_t* lock) nogil
    int64_t add_waiting(int64_t* waiting, int64_t size) nogil
    int64_t waiting_of(int64_t* waiting) nogil
    void take_answer(int64_t* waiting, int64_t size, int64_t batch, int64_t most) nogil
    bint wait_for_answers(int64_t* waiting, int64_t bound, int64_t wait_ms) nogil

cdef enum:
    MAJOR = 2  # of librdkafka's version
    CONSUMER = 1
    AT_ONCE = 256
    ENOUGH = 4 << 20  # bytes, after which a batch takes no more
    STEP_MS = 200  # how long a signal waits
    WRITTEN_FIELDS = 4  # of a record: millrace.stage.OutputRecord
    MOST_HEADERS = 8
    MOST_REFUSALS = 256
    PARTITIONS = 64  # of a topic that are bounded; librdkafka's queue as a whole bounds the others
    NAME_SIZE = 256  # a topic's has 249 at the most

# As rdkafka.h has them.
cdef enum:
    ERROR_PURGE_INFLIGHT = -151
    ERROR_PURGE_QUEUE = -152
    ERROR_QUEUE_FULL = -184
    FLAG_COPY = 2
    VTYPE_RKT = 2
    VTYPE_PARTITION = 3
    VTYPE_VALUE = 4
    VTYPE_KEY = 5
    VTYPE_MSGFLAGS = 7
    VTYPE_TIMESTAMP = 8
    VTYPE_HEADER = 9


# rd_kafka_message_t
cdef struct Message:
    int error
    void* topic
    int32_t partition
    const char* payload
    size_t size
    const char* key
    size_t key_size
    int64_t offset
    void* private


cdef struct Memory:
    const void* data
    size_t size


cdef struct Header:
    const char* name
    const void* data
    Py_ssize_t size


cdef union Value:
    void* pointer
    int number
    int32_t int32
    int64_t int64
    Memory memory
    Header header
    char padding[64]


# rd_kafka_vu_t
cdef struct Argument:
    int kind
    Value value


# The opaque of a topic. ``waiting`` has the bytes without an answer, by partition; ``batch`` of them are a batch,
# and at ``most`` a partition is full.
cdef struct Window:
    int64_t batch
    int64_t most
    int64_t waiting[PARTITIONS]


cdef struct Refusal:
    void* client
    int error
    char topic[NAME_SIZE]


ctypedef int (*OnNew)(void* client, const void* conf, void* opaque, char* text, size_t size) noexcept nogil
ctypedef int (*OnAcknowledgement)(void* client, Message* message, void* opaque) noexcept nogil
ctypedef void (*OnError)(void* client, int error, const char* text, void* opaque) noexcept nogil
ctypedef int (*Version)() noexcept nogil
ctypedef int (*TypeOf)(const void* client) noexcept nogil
ctypedef const void* (*ConfOf)(void* client) noexcept nogil
ctypedef int (*ConfGet)(const void* conf, const char* name, char* value, size_t* size) noexcept nogil
ctypedef void (*ConfSetErrorCb)(void* conf, OnError called) noexcept nogil
ctypedef int (*AddOnNew)(void* conf, const char* name, OnNew called, void* opaque) noexcept nogil
ctypedef int (*AddOnAcknowledgement)(
    void* client, const char* name, OnAcknowledgement called, void* opaque) noexcept nogil
ctypedef void* (*QueueGetPartition)(void* client, const char* topic, int32_t partition) noexcept nogil
ctypedef void (*QueueForward)(void* queue, void* to) noexcept nogil
ctypedef void (*Destroy)(void* what) noexcept nogil
ctypedef Py_ssize_t (*ConsumeBatchQueue)(void* queue, int wait_ms, Message** messages, size_t most) noexcept nogil
ctypedef int64_t (*MessageTimestamp)(const Message* message, int* kind) noexcept nogil
ctypedef int32_t (*MessageLeaderEpoch)(const Message* message) noexcept nogil
ctypedef const char* (*TextOf)(const void* what) noexcept nogil
ctypedef int (*MessageHeaders)(const Message* message, void** headers) noexcept nogil
ctypedef int (*HeaderGetAll)(
    const void* headers, size_t index, const char** name, const void** data, size_t* size) noexcept nogil
ctypedef void* (*TopicNew)(void* client, const char* name, void* conf) noexcept nogil
ctypedef void* (*TopicConfDup)(void* client) noexcept nogil
ctypedef void (*TopicConfSetOpaque)(void* conf, void* opaque) noexcept nogil
ctypedef void* (*TopicOpaque)(const void* topic) noexcept nogil
ctypedef void* (*Produceva)(void* client, const Argument* arguments, size_t count) noexcept nogil
ctypedef int (*ErrorCode)(const void* error) noexcept nogil

# Functions of librdkafka, by their names without "rd_kafka_"; "type" and "conf" are type_of and conf_of.
cdef Version version
cdef TypeOf type_of
cdef ConfOf conf_of
cdef ConfGet conf_get
cdef ConfSetErrorCb conf_set_error_cb
cdef AddOnNew conf_interceptor_add_on_new
cdef AddOnAcknowledgement interceptor_add_on_acknowledgement
cdef QueueGetPartition queue_get_partition
cdef QueueForward queue_forward
cdef Destroy queue_destroy
cdef ConsumeBatchQueue consume_batch_queue
cdef Destroy message_destroy
cdef MessageTimestamp message_timestamp
cdef MessageLeaderEpoch message_leader_epoch
cdef TextOf message_errstr
cdef MessageHeaders message_headers
cdef HeaderGetAll header_get_all
cdef TopicConfDup default_topic_conf_dup
cdef TopicConfSetOpaque topic_conf_set_opaque
cdef TopicNew topic_new
cdef TopicOpaque topic_opaque
cdef TextOf topic_name
cdef Destroy topic_destroy
cdef Produceva produceva
cdef ErrorCode error_code
cdef TextOf error_string
cdef Destroy error_destroy


class NotUsableError(Exception):
    """librdkafka cannot be used from here; the message says why."""


cdef void* function(void* library, bytes name) except NULL:
    cdef void* found = dlsym(library, b"rd_kafka_" + name)
    if found == NULL:
        raise NotUsableError(f"librdkafka has no function rd_kafka_{name.decode()}")
    return found


def load(str extension not None, int expected):
    """Find librdkafka's functions in what the loaded extension module at the path ``extension`` is linked with.

    ``expected`` is the version of librdkafka that it tells. Raises :class:`NotUsableError`.
    """
    global version, type_of, conf_of, conf_get, conf_set_error_cb
    global conf_interceptor_add_on_new, interceptor_add_on_acknowledgement
    global queue_get_partition, queue_forward, queue_destroy, consume_batch_queue
    global message_destroy, message_timestamp, message_leader_epoch, message_errstr, message_headers, header_get_all
    global default_topic_conf_dup, topic_conf_set_opaque, topic_new, topic_opaque, topic_name, topic_destroy
    global produceva, error_code, error_string, error_destroy
    cdef void* library = dlopen(extension.encode(), RTLD_NOW | RTLD_NOLOAD)
    if library == NULL:
        raise NotUsableError(f"{extension} is not loaded")
    version = <Version> function(library, b"version")
    if version() != expected:
        raise NotUsableError(f"librdkafka has version {version():#010x}, and confluent_kafka says {expected:#010x}")
    if expected >> 24 != MAJOR:
        raise NotUsableError(f"librdkafka has version {expected:#010x}, and its interface is known for {MAJOR}")
    type_of = <TypeOf> function(library, b"type")
    conf_of = <ConfOf> function(library, b"conf")
    conf_get = <ConfGet> function(library, b"conf_get")
    conf_set_error_cb = <ConfSetErrorCb> function(library, b"conf_set_error_cb")
    conf_interceptor_add_on_new = <AddOnNew> function(library, b"conf_interceptor_add_on_new")
    interceptor_add_on_acknowledgement = <AddOnAcknowledgement> function(
        library, b"interceptor_add_on_acknowledgement")
    queue_get_partition = <QueueGetPartition> function(library, b"queue_get_partition")
    queue_forward = <QueueForward> function(library, b"queue_forward")
    queue_destroy = <Destroy> function(library, b"queue_destroy")
    consume_batch_queue = <ConsumeBatchQueue> function(library, b"consume_batch_queue")
    message_destroy = <Destroy> function(library, b"message_destroy")
    message_timestamp = <MessageTimestamp> function(library, b"message_timestamp")
    message_leader_epoch = <MessageLeaderEpoch> function(library, b"message_leader_epoch")
    message_errstr = <TextOf> function(library, b"message_errstr")
    message_headers = <MessageHeaders> function(library, b"message_headers")
    header_get_all = <HeaderGetAll> function(library, b"header_get_all")
    default_topic_conf_dup = <TopicConfDup> function(library, b"default_topic_conf_dup")
    topic_conf_set_opaque = <TopicConfSetOpaque> function(library, b"topic_conf_set_opaque")
    topic_new = <TopicNew> function(library, b"topic_new")
    topic_opaque = <TopicOpaque> function(library, b"topic_opaque")
    topic_name = <TextOf> function(library, b"topic_name")
    topic_destroy = <Destroy> function(library, b"topic_destroy")
    produceva = <Produceva> function(library, b"produceva")
    error_code = <ErrorCode> function(library, b"error_code")
    error_string = <TextOf> function(library, b"error_string")
    error_destroy = <Destroy> function(library, b"error_destroy")


# -- the plugin -----------------------------------------------------------------------------------------

cdef void* latest = NULL


cdef unsigned long errors_said = 0


cdef void on_error(void* client, int error, const char* text, void* opaque) noexcept nogil:
    # What is said here mends by itself: the rest comes as an error of the partition.
    global errors_said
    errors_said += 1


def errors_of_links():
    """Return how often a consumer of this process has said that it lost a broker, or could not reach one."""
    return errors_said


cdef int on_new(void* client, const void* conf, void* opaque, char* text, size_t size) noexcept nogil:
    # ``conf`` is that of the client, which no thread uses yet: made() looks whether it is.
    global latest
    latest = client
    if type_of(client) == CONSUMER:
        conf_set_error_cb(<void*> conf, on_error)
        return 0
    return interceptor_add_on_acknowledgement(client, b"millrace", on_acknowledgement, NULL)


cdef public int conf_init(void* conf, void** opaque, char* text, size_t size) noexcept nogil:
    # What librdkafka calls of a plugin: rd_kafka_plugin_f_conf_init_t.
    return conf_interceptor_add_on_new(conf, b"millrace", on_new, NULL)


@cython.no_gc_clear
cdef class Handle:
    """A client of librdkafka, and the client of confluent_kafka that it belongs to."""

    cdef void* client
    cdef object owner


def made(make):
    """Call ``make``, which makes a client with this module as a plugin; give the client, and its handle.

    The handle is None where librdkafka has not told it. Not for two threads at a time.
    """
    global latest
    cdef Handle handle = Handle.__new__(Handle)
    latest = NULL
    handle.owner = make()
    handle.client, latest = latest, NULL
    return handle.owner, (handle if handle.client != NULL and is_ready(handle.client) else None)


cdef bint is_ready(void* client):
    """Return whether no callback of confluent_kafka can be called from here."""
    cdef char expected[32]
    cdef char found[32]
    cdef size_t size = sizeof(found)
    if type_of(client) != CONSUMER:
        return True
    snprintf(expected, sizeof(expected), b"%p", <void*> on_error)
    return conf_get(conf_of(client), b"error_cb", found, &size) == 0 and strcmp(expected, found) == 0


# -- reading --------------------------------------------------------------------------------------------

@cython.no_gc_clear  # whose client is to outlive it
cdef class PartitionReader:
    """Gives the records of a partition in batches, each a RecordBlock of such ``record``.

    It is made before the consumer is assigned the partition, and closed before the consumer is. What came beside
    records in the last batch is in ``errors``, made by ``error`` of a code and a text; ``leader_epoch`` is that of
    the last record, -1 where it is not known. Unless ``dated``, records have their offsets for timestamps.
    """

    cdef Handle _handle
    cdef void* _queue
    cdef object _record
    cdef bint _dated
    cdef object _error
    cdef bint _reading
    cdef Message* _messages[AT_ONCE]
    cdef readonly int32_t leader_epoch
    cdef readonly list errors

    def __cinit__(self):
        self._queue = NULL

    def __init__(self, Handle handle not None, str topic not None, int32_t number, type record not None, error,
                 bint dated=True):
        if self._queue != NULL:
            raise RuntimeError("made twice")
        self._handle, self._record, self._error, self._dated = handle, record, error, dated
        self.leader_epoch, self.errors = -1, []
        self._queue = queue_get_partition(handle.client, topic.encode(), number)
        if self._queue == NULL:
            raise NotUsableError(f"librdkafka gives no queue of {topic}")
        # Before it is assigned: librdkafka forwards no queue after that which was told not to.
        queue_forward(self._queue, NULL)

    def __dealloc__(self):
        if self._queue != NULL:
            queue_destroy(self._queue)

    def close(self):
        """Let go of the queue."""
        if self._reading:
            raise RuntimeError("it is read by another thread")
        if self._queue != NULL:
            queue_destroy(self._queue)
            self._queue = NULL
        self._handle = None

    def read(self, Py_ssize_t count, int wait_ms):
        """Return up to ``count`` records: those that are there, else what comes first within ``wait_ms``."""
        cdef RecordBlock records = RecordBlock(self._record)
        cdef Py_ssize_t got
        self.errors = []
        got = self._take(min(count, AT_ONCE), 0)
        while got == 0 and wait_ms > 0:
            got = self._take(1, min(wait_ms, STEP_MS))
            wait_ms -= STEP_MS
            if got == 0:
                PyErr_CheckSignals()
        while got:
            self._keep(got, records)
            if records.count() >= count or records.values_size >= ENOUGH or self.errors:
                break
            got = self._take(min(count - records.count(), AT_ONCE), 0)
        records.fit()
        return records

    cdef Py_ssize_t _take(self, Py_ssize_t count, int wait_ms) except -1:
        cdef Py_ssize_t got
        if self._queue == NULL or self._reading:
            raise RuntimeError("it is closed, or read by another thread")
        self._reading = True
        with nogil:
            got = consume_batch_queue(self._queue, wait_ms, self._messages, count)
        self._reading = False
        return max(got, 0)

    cdef int _keep(self, Py_ssize_t got, RecordBlock records) except -1:
        """Add the messages at hand to records, and give them back."""
        cdef Py_ssize_t index, size = 0
        cdef Message* message
        for index in range(got):
            size += self._messages[index].size + self._messages[index].key_size
        index = 0
        try:
            records.own(size)
            while index < got:
                message = self._messages[index]
                if message.error:
                    text = (<bytes> message_errstr(message)).decode("utf-8", "replace")
                    self.errors.append(self._error(message.error, text))
                else:
                    self._add(message, records)
                    self.leader_epoch = message_leader_epoch(message)
                message_destroy(message)
                index += 1
        except BaseException:
            while index < got:
                message_destroy(self._messages[index])
                index += 1
            raise
        return 0

    cdef int _add(self, const Message* message, RecordBlock records) except -1:
        cdef int kind
        cdef int64_t timestamp = message_timestamp(message, &kind) if self._dated else message.offset
        return records.add(
            message.offset,
            timestamp,
            <const uint8_t*> message.key,
            -1 if message.key == NULL else <Py_ssize_t> message.key_size,
            <const uint8_t*> message.payload,
            -1 if message.payload == NULL else <Py_ssize_t> message.size,
            headers_of(message),
        )


cdef object bytes_of(const void* data, Py_ssize_t size):
    return None if data == NULL else PyBytes_FromStringAndSize(<const char*> data, size)


cdef list headers_of(const Message* message):
    cdef void* headers = NULL
    cdef const char* name
    cdef const void* data
    cdef size_t size
    cdef size_t index = 0
    cdef list found
    if message_headers(message, &headers) or headers == NULL:
        return None
    found = []
    while header_get_all(headers, index, &name, &data, &size) == 0:
        found.append(((<bytes> name).decode(), bytes_of(data, size)))
        index += 1
    return found


# -- writing --------------------------------------------------------------------------------------------

@cython.no_gc_clear  # whose client is to outlive it
cdef class RecordWriter:
    """Gives records to a producer. ``fail`` is called with the code and the text of an error, and is to raise it.

    ``batch_size`` is that of the producer: a partition takes records until those without an answer are nearly
    two batches, one on its way and one that is being filled. Closed before the producer is.
    """

    cdef Handle _handle
    cdef object _fail
    cdef dict _topics
    cdef list _ready  # windows that had a batch, and
    cdef list _full  # those that had no room
    cdef int64_t _batch
    cdef int64_t _most

    def __init__(self, Handle handle not None, int64_t batch_size, fail):
        self._handle, self._batch, self._most, self._fail = handle, batch_size, batch_size * 19 // 10, fail
        self._topics, self._ready, self._full = {}, [], []
        self.refusals()  # of one that lay at the same address

    def __dealloc__(self):
        cdef Refusal refusal
        if self._topics is not None:
            self._forget_topics()
        if self._handle is not None:
            while next_refusal(self._handle.client, &refusal):
                pass

    def close(self):
        """Let go of the topics, and of what was refused."""
        self._forget_topics()
        self.refusals()
        self._handle = None

    cdef _forget_topics(self):
        cdef Window* window
        cdef Py_ssize_t index
        cdef bint waits
        for topic in self._topics.values():
            window = <Window*> topic_opaque(<void*> <size_t> topic)
            waits = False
            for index in range(PARTITIONS):
                waits = waits or (window != NULL and waiting_of(&window.waiting[index]) != 0)
            topic_destroy(<void*> <size_t> topic)
            if not waits:  # else an answer may come yet
                free(window)
        self._topics.clear()
        self._ready.clear()
        self._full.clear()

    def write(self, str topic not None, int32_t partition, list records not None, Py_ssize_t index):
        """Add records from ``index`` on; give that of the first for which there is no room now.

        They are tuples as millrace.stage.OutputRecord says. A timestamp of 0, which librdkafka would take for
        "now", is written as 1.
        """
        global producing
        cdef Argument arguments[6 + MOST_HEADERS]
        cdef Memory memory
        cdef size_t count
        cdef int code
        cdef void* error
        cdef tuple record
        cdef int64_t size, total
        cdef int64_t* waiting = NULL
        cdef Window* window
        cdef Handle handle = self._handle
        if handle is None:
            raise RuntimeError("it is closed")
        arguments[0].kind, arguments[0].value.pointer = VTYPE_RKT, self._topic(handle, topic)
        window = <Window*> topic_opaque(arguments[0].value.pointer)
        if window != NULL and 0 <= partition < PARTITIONS:
            waiting = &window.waiting[partition]
        arguments[1].kind, arguments[1].value.int32 = VTYPE_PARTITION, partition
        arguments[2].kind, arguments[2].value.number = VTYPE_MSGFLAGS, FLAG_COPY
        arguments[3].kind, arguments[4].kind, arguments[5].kind = VTYPE_KEY, VTYPE_VALUE, VTYPE_TIMESTAMP
        while index < len(records):
            record = <tuple?> records[index]
            if len(record) != WRITTEN_FIELDS:
                raise TypeError("not a record to be written")
            point(&arguments[3].value.memory, record[0])
            point(&arguments[4].value.memory, record[1])
            size = arguments[3].value.memory.size + arguments[4].value.memory.size
            if waiting != NULL and waiting_of(waiting) >= self._most:
                break
            arguments[5].value.int64 = <int64_t> record[2] or 1
            count = 6
            for name, data in record[3] or ():
                if count == 6 + MOST_HEADERS:
                    raise ValueError("a record has too many headers")
                # Of objects that the record holds: its text keeps its own UTF-8.
                arguments[count].kind = VTYPE_HEADER
                arguments[count].value.header.name = PyUnicode_AsUTF8(<str?> name)
                point(&memory, data)
                arguments[count].value.header.data = memory.data
                arguments[count].value.header.size = <Py_ssize_t> memory.size
                count += 1
            if waiting != NULL:
                total = add_waiting(waiting, size)
                if total >= self._batch > total - size:
                    self._ready.append(<size_t> waiting)
                if total >= self._most:
                    self._full.append(<size_t> waiting)
            producing = True
            error = produceva(handle.client, arguments, count)
            producing = False
            if error != NULL:
                if waiting != NULL:
                    add_waiting(waiting, -size)
                code = error_code(error)
                text = (<bytes> error_string(error)).decode("utf-8", "replace")
                error_destroy(error)
                if code == ERROR_QUEUE_FULL:
                    break
                self._fail(code, text)
                raise RuntimeError(text)
            index += 1
        return index

    def wait(self, int64_t wait_ms):
        """Wait until every partition has room; False where no answer comes for so long."""
        return self._wait(self._full, self._most, wait_ms)

    def wait_to_flush(self, int64_t wait_ms):
        """Wait until no partition has more than one batch; False where no answer comes for so long."""
        return self._wait(self._ready, self._batch, wait_ms)

    cdef bint _wait(self, list windows, int64_t bound, int64_t wait_ms) except -1:
        cdef int64_t* waiting
        cdef bint answered
        while windows:
            waiting = <int64_t*> <size_t> windows[-1]
            with nogil:
                answered = wait_for_answers(waiting, bound, wait_ms)
            if not answered:
                return False
            windows.pop()
        return True

    cdef void* _topic(self, Handle handle, str name) except NULL:
        """Return librdkafka's object of a topic. By name it would look through all that it has, for each record."""
        cdef void* topic
        cdef void* conf
        cdef Window* window
        known = self._topics.get(name)
        if known is None:
            window = <Window*> calloc(1, sizeof(Window))
            if window == NULL:
                raise MemoryError
            window.batch, window.most = self._batch, self._most
            conf = default_topic_conf_dup(handle.client)
            topic_conf_set_opaque(conf, window)
            topic = topic_new(handle.client, name.encode(), conf)
            if topic == NULL or topic_opaque(topic) != window:  # which librdkafka knew already
                free(window)
            if topic == NULL:
                raise NotUsableError(f"librdkafka does not take the topic {name}")
            known = self._topics[name] = <size_t> topic
        return <void*> <size_t> known

    def refusals(self):
        """Return the topics of records that were refused since this was called last, each with an error's code."""
        cdef Refusal refusal
        cdef list found = []
        cdef Handle handle = self._handle
        while handle is not None and next_refusal(handle.client, &refusal):
            found.append(((<bytes> <const char*> refusal.topic).decode(), refusal.error))
        return found


cdef int point(Memory* memory, data) except -1:
    """Point to bytes, or to nothing for None."""
    memory.data, memory.size = NULL, 0
    if data is not None:
        memory.data, memory.size = PyBytes_AS_STRING(<bytes?> data), PyBytes_GET_SIZE(<bytes> data)
    return 0


# -- what brokers refuse --------------------------------------------------------------------------------

cdef Refusal refusals[MOST_REFUSALS]
cdef Py_ssize_t refused = 0


cdef int on_acknowledgement(void* client, Message* message, void* opaque) noexcept nogil:
    """Take note of a record that has its answer, and whether it was taken; from any thread."""
    cdef Window* window
    if producing or message.topic == NULL:
        return 0
    window = <Window*> topic_opaque(message.topic)
    if window != NULL and 0 <= message.partition < PARTITIONS:
        take_answer(
            &window.waiting[message.partition], message.size + message.key_size, window.batch, window.most)
    if message.error:
        if message.error != ERROR_PURGE_QUEUE and message.error != ERROR_PURGE_INFLIGHT:
            note_refusal(client, topic_name(message.topic), message.error)
    return 0


cdef void note_refusal(void* client, const char* topic, int error) noexcept nogil:
    global refused
    cdef Py_ssize_t index = 0
    pthread_mutex_lock(&refusals_lock)
    while index < refused:
        if refusals[index].client == client and refusals[index].error == error and \
                strcmp(refusals[index].topic, topic) == 0:
            break
        index += 1
    if index == refused and refused < MOST_REFUSALS and strlen(topic) < NAME_SIZE:
        refusals[refused].client, refusals[refused].error = client, error
        strcpy(refusals[refused].topic, topic)
        refused += 1
    pthread_mutex_unlock(&refusals_lock)


cdef bint next_refusal(void* client, Refusal* refusal) noexcept nogil:
    """Take the first refusal of a client; False where there is none."""
    global refused
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t later
    cdef bint found
    pthread_mutex_lock(&refusals_lock)
    while index < refused and refusals[index].client != client:
        index += 1
    found = index < refused
    if found:
        refusal[0] = refusals[index]
        refused -= 1
        for later in range(index, refused):
            refusals[later] = refusals[later + 1]
    pthread_mutex_unlock(&refusals_lock)
    return found
