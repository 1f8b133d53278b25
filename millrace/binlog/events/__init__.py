"""Every event type, declared once each: importing this package fills ``EVENTS``.

What the modules have in their ``__all__``, which is what they declare, is here as well.
"""

from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.events import (
    control,
    group_replication,
    gtid,
    load,
    mariadb,
    query,
    rows,
    statement_events,
    transaction,
)
from millrace.binlog.events.control import *  # noqa: F403 - what it declares
from millrace.binlog.events.group_replication import *  # noqa: F403 - what it declares
from millrace.binlog.events.gtid import *  # noqa: F403 - what it declares
from millrace.binlog.events.load import *  # noqa: F403 - what it declares
from millrace.binlog.events.mariadb import *  # noqa: F403 - what it declares
from millrace.binlog.events.query import *  # noqa: F403 - what it declares
from millrace.binlog.events.rows import *  # noqa: F403 - what it declares
from millrace.binlog.events.statement_events import *  # noqa: F403 - what it declares
from millrace.binlog.events.transaction import *  # noqa: F403 - what it declares

__all__ = ["EVENTS", "Event"]
__all__ += control.__all__
__all__ += group_replication.__all__
__all__ += gtid.__all__
__all__ += load.__all__
__all__ += mariadb.__all__
__all__ += query.__all__
__all__ += rows.__all__
__all__ += statement_events.__all__
__all__ += transaction.__all__
