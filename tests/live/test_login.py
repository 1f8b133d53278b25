"""Logging in to real servers: each method, over each way, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from millrace.local import MariaDB, MySQL
from millrace.mysql.address import MysqlAddress, SslMode
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.errors import RefusedError

ASKS = "the server asks for the password itself"


@pytest.fixture(params=["caching_sha2_password", "sha256_password", "mysql_native_password"])
def account(request: pytest.FixtureRequest, mysql: MySQL) -> Iterator[MysqlAddress]:
    """An account of MySQL that nobody has logged in with since; over TCP, without TLS."""
    plugin = request.param
    mysql.execute(f"CREATE USER '{plugin}'@'%' IDENTIFIED WITH {plugin} BY 'hush'")
    yield replace(mysql.address, user=plugin, password="hush", ssl_mode=SslMode.DISABLED, ssl_ca=None)
    mysql.execute(f"DROP USER '{plugin}'@'%'")


def test_without_tls(account: MysqlAddress, mysql: MySQL) -> None:
    """The password itself is given for a key that is pinned, or may be taken on trust, alone."""
    if account.user != "mysql_native_password":
        with pytest.raises(RefusedError, match=rf"{ASKS} \({account.user}\), and there is no TLS"):
            MysqlConnection(account)
        other = replace(account, server_public_key_path=mysql.data_folder / "ca.pem")
        with pytest.raises(RefusedError, match=r"ca\.pem is not an RSA public key"):
            MysqlConnection(other)
    for how in (
        {"server_public_key_path": mysql.data_folder / "public_key.pem"},
        {"get_server_public_key": True},
    ):
        mysql.execute("FLUSH PRIVILEGES")  # and what the server remembers of logins
        with MysqlConnection(replace(account, **how)) as connection:
            assert connection.login_method == account.user
            assert connection.row("SELECT CURRENT_USER() AS user").text("user") == f"{account.user}@%"
            assert connection.may_give_password
    if account.user == "caching_sha2_password":
        # The server remembers it now, and is content with a scramble.
        with MysqlConnection(account) as connection:
            assert not connection.may_give_password
    with pytest.raises(RefusedError, match="check user and password"):
        MysqlConnection(replace(account, password="wrong", get_server_public_key=True))


def test_over_tls(account: MysqlAddress, mysql: MySQL) -> None:
    """The password itself goes over TLS with a verified certificate, or one that may be taken on trust."""
    unverified = replace(account, ssl_mode=SslMode.REQUIRED)
    if account.user != "mysql_native_password":
        with pytest.raises(
            RefusedError, match=rf"{ASKS} \({account.user}\), over TLS whose certificate is not"
        ):
            MysqlConnection(unverified)
    verified = replace(account, ssl_mode=SslMode.VERIFY_CA, ssl_ca=mysql.ca_file)
    for address in (replace(unverified, get_server_public_key=True), verified):
        mysql.execute("FLUSH PRIVILEGES")
        with MysqlConnection(address) as connection:
            assert connection.login_method == account.user
            assert connection.verified is (address is verified)


def test_over_a_unix_socket(account: MysqlAddress, mysql: MySQL) -> None:
    for mode in (SslMode.DISABLED, SslMode.PREFERRED):
        mysql.execute("FLUSH PRIVILEGES")
        with MysqlConnection(replace(account, unix_socket=str(mysql.socket), ssl_mode=mode)) as connection:
            assert connection.login_method == account.user


def test_without_a_password(mysql: MySQL, mariadb: MariaDB) -> None:
    """There is nothing to reveal."""
    for server, plugins in (
        (mysql, ("caching_sha2_password", "sha256_password", "mysql_native_password")),
        (mariadb, ("mysql_native_password",)),
    ):
        for plugin in plugins:
            how = f"WITH {plugin} BY ''" if server is mysql else "BY ''"
            server.execute(f"CREATE USER 'nothing'@'%' IDENTIFIED {how}")
            for mode in (SslMode.DISABLED, SslMode.REQUIRED):
                address = replace(server.address, user="nothing", password="", ssl_mode=mode, ssl_ca=None)
                MysqlConnection(address).close()
            server.execute("DROP USER 'nothing'@'%'")
