"""Where a database server is, how we log in, and how far the way there is to be trusted."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class SslMode(StrEnum):
    """How TLS is used; names and meanings are those of MySQL's own client (``--ssl-mode``)."""

    DISABLED = "DISABLED"
    PREFERRED = "PREFERRED"
    """TLS where the server offers it; whose certificate it is does not matter."""
    REQUIRED = "REQUIRED"
    """TLS, or no connection; whose certificate it is does not matter."""
    VERIFY_CA = "VERIFY_CA"
    """The certificate must be signed by the given authority."""
    VERIFY_IDENTITY = "VERIFY_IDENTITY"
    """It must be signed by the given authority, else a known one, and be the host's."""

    @property
    def verifies(self) -> bool:
        """Whether the server's certificate is checked."""
        return self in {SslMode.VERIFY_CA, SslMode.VERIFY_IDENTITY}


@dataclass(frozen=True, slots=True)
class MysqlAddress:
    """Where a server is and how we log in.

    ``get_server_public_key`` takes the key that a server sends on trust, and ``server_public_key_path`` names
    the file with the only one to take, where the password itself has to be sent without verified TLS: see
    :mod:`millrace.mysql.login`.
    """

    host: str = "127.0.0.1"
    port: int = 3306
    user: str = "root"
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    ssl_mode: SslMode = SslMode.PREFERRED
    ssl_ca: Path | None = None
    ssl_cert: Path | None = None
    ssl_key: Path | None = None
    get_server_public_key: bool = False
    server_public_key_path: Path | None = None
    connect_timeout_s: float = 10.0

    def __str__(self) -> str:
        if self.unix_socket:
            return self.unix_socket
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
