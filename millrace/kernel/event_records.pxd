# cython: language_level=3
"""How Avro has a field of an event: see :class:`millrace.avro.plans.FieldKind`."""


cpdef enum FieldKind:
    KIND_LONG = 1
    KIND_UINT64 = 2
    KIND_BYTES = 3
    KIND_STRING = 4
    KIND_OTHER = 5
    KIND_OPTIONAL = 16
