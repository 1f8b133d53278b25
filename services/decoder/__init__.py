"""The decoder: exact event bytes in, typed Avro events out."""
