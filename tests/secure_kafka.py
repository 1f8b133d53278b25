"""The tests' Kafka, with a second listener: TLS, certificates of clients, and SASL."""

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from millrace.local import Kafka
from millrace.local.certificates import write_certificates
from millrace.local.processes import release_port, reserve_port

__all__ = ["SecureKafka"]


class SecureKafka(Kafka):
    """A Kafka of one node whose second listener admits one user, who shows a certificate."""

    user = "millrace"
    password = "hidden-of-sasl"
    key_password = "hidden-of-the-key"

    def __init__(self) -> None:
        super().__init__()
        self._port = reserve_port()

    @property
    def secure(self) -> dict[str, str]:
        """The settings of a client of the second listener."""
        return {
            "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{self._port}",
            "MILLRACE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "MILLRACE_KAFKA_SASL_MECHANISM": "PLAIN",
            "MILLRACE_KAFKA_SASL_USERNAME": self.user,
            "MILLRACE_KAFKA_SASL_PASSWORD": self.password,
            "MILLRACE_KAFKA_SSL_CA_LOCATION": str(self.folder / "ca.pem"),
            "MILLRACE_KAFKA_SSL_CERTIFICATE_LOCATION": str(self.folder / "server-cert.pem"),
            "MILLRACE_KAFKA_SSL_KEY_LOCATION": str(self.folder / "client-key.pem"),
            "MILLRACE_KAFKA_SSL_KEY_PASSWORD": self.key_password,
        }

    def close(self) -> None:
        super().close()
        release_port(self._port)

    def _prepare(self) -> None:
        write_certificates(self.folder)
        certificate, key = (self.folder / f"server-{name}.pem" for name in ("cert", "key"))
        (self.folder / "server.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
        encryption = BestAvailableEncryption(self.key_password.encode())
        encrypted = load_pem_private_key(key.read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, encryption
        )
        (self.folder / "client-key.pem").write_bytes(encrypted)
        super()._prepare()

    def _settings(self, node: int) -> dict[str, str]:
        settings = super()._settings(node)
        own = {
            "ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_{self.user}="{self.password}";',
        }
        return settings | {
            "listeners": f"{settings['listeners']},SECURE://127.0.0.1:{self._port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            **{f"listener.name.secure.{name}": value for name, value in own.items()},
        }
