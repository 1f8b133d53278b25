"""What a process's exit code tells whoever started it."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of services and commands; ``docs/how-to/troubleshoot.md`` says what to do about each."""

    STOPPED = 0
    """Stopped as asked, or nothing was left to do."""
    STUCK = 1
    """A call held Python's interpreter lock for too long: the code of :mod:`faulthandler`."""
    SETTINGS = 2
    """Wrong settings."""
    SOURCE = 3
    """The database server or the log files refuse or cannot be used."""
    KAFKA = 4
    """Kafka cannot be reached, or refuses."""
    REGISTRY = 5
    """The schema registry cannot be reached, or refuses."""
    FENCED = 6
    """Another process took over."""
    DATA = 7
    """The data stops us: a gap, another log without GTIDs."""
    NOT_UNDONE = 8
    """``millrace binlog --flashback`` or the job flashback: not all that was selected can be undone."""
    FAULTY = 9
    """A job has met records that could not be read, or ``binlog --verify`` events that it cannot compare."""
    BUG = 70
    """A bug of ours."""
    OUTPUT = 74
    """Standard output, or a file, cannot be written: its disk is full."""
    INTERRUPTED = 130
    """A command was ended by Ctrl-C, or a snapshot told to stop before its end."""
    UNREAD = 141
    """Nobody reads our output any more: the code of a process that SIGPIPE has ended."""
