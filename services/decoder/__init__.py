"""The decoder: exact event bytes in, typed Avro events out; by what is in :mod:`millrace.decoder`."""
