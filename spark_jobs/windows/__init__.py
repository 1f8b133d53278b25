"""Windows of time over a log that grows: what lies in each, as records of a topic and as metrics."""
