"""Keys, certificates and credentials files for tests, made on the spot with Ed25519 alone."""

import base64
import hashlib
import json
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]  # the package has no types
from nacl.signing import SigningKey

_ED25519 = bytes.fromhex("06032b6570")
_COMMON_NAME = bytes.fromhex("0603550403")


class NKey:
    """A NATS key pair: of an operator, an account or a user."""

    def __init__(self, kind: int) -> None:
        self.seed: str = nkeys.encode_seed(os.urandom(32), kind).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public: str = self._pair.public_key.decode().rstrip("=")

    @classmethod
    def user(cls) -> "NKey":
        return cls(nkeys.PREFIX_BYTE_USER)

    def token(self, subject: "NKey", name: str, claims: dict[str, Any]) -> str:
        """Sign what this key says about another, as a NATS JWT."""
        body = {
            "jti": base64.b32encode(os.urandom(20)).decode(),
            "iat": int(datetime.now(UTC).timestamp()),
            "iss": self.public,
            "sub": subject.public,
            "name": name,
            "nats": {**claims, "version": 2},
        }
        signed = ".".join(_base64url(part) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body))
        return f"{signed}.{_base64url(self._pair.sign(signed.encode()))}"


class Operator:
    """An operator with an account for timers: the configuration of a broker, and its users' files."""

    def __init__(self) -> None:
        self._operator = NKey(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = NKey(nkeys.PREFIX_BYTE_ACCOUNT)
        self._system = NKey(nkeys.PREFIX_BYTE_ACCOUNT)

    @property
    def broker_config(self) -> str:
        operator = self._operator.token(self._operator, "operator", {"type": "operator"})
        tokens = {
            self._account.public: self._account_token(self._account, "timers", storage=-1),
            self._system.public: self._account_token(self._system, "system", storage=0),
        }
        preload = "\n".join(f"  {public}: {token}" for public, token in tokens.items())
        return (
            f"operator: {operator}\nsystem_account: {self._system.public}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
        )

    def _account_token(self, account: NKey, name: str, *, storage: int) -> str:
        unlimited = ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "streams", "consumer")
        limits = {**dict.fromkeys(unlimited, -1), "wildcards": True}
        limits |= {"mem_storage": storage, "disk_storage": storage}
        return self._operator.token(account, name, {"type": "account", "limits": limits})

    def credentials(self, path: Path) -> Path:
        """Write the credentials file of a new user of the account."""
        user = NKey.user()
        claims = {"type": "user", "pub": {}, "sub": {}, **dict.fromkeys(("subs", "data", "payload"), -1)}
        path.write_text(
            "-----BEGIN NATS USER JWT-----\n"
            f"{self._account.token(user, 'user', claims)}\n"
            "------END NATS USER JWT------\n\n"
            "-----BEGIN USER NKEY SEED-----\n"
            f"{user.seed}\n"
            "------END USER NKEY SEED------\n"
        )
        return path


class Authority:
    """A certificate authority that lives for one test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = SigningKey.generate()
        self._name = f"authority {os.urandom(4).hex()}"
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / "ca.pem"
        constraints = _extension("551d13", _sequence(b"\x01\x01\xff"), critical=True)
        usage = _extension("551d0f", _tagged(0x03, b"\x02\x04"), critical=True)  # keyCertSign
        self.certificate.write_text(self._sign(self._name, self._key, constraints + usage))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Write a certificate for this machine's loopback address and its key."""
        key = SigningKey.generate()
        names = _tagged(0x87, bytes([127, 0, 0, 1])) + _tagged(0x82, b"localhost")
        usage = _extension("551d0f", _tagged(0x03, b"\x07\x80"), critical=True)  # digitalSignature
        certificate, private = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_text(self._sign(name, key, _extension("551d11", _sequence(names)) + usage))
        secret = _sequence(_integer(0), _sequence(_ED25519), _tagged(0x04, _tagged(0x04, bytes(key))))
        private.write_text(_pem("PRIVATE KEY", secret))
        return certificate, private

    def context(self) -> ssl.SSLContext:
        """Return what a client needs to be let in."""
        context = ssl.create_default_context(cafile=self.certificate)
        context.load_cert_chain(*self.issue("client-of-the-test"))
        return context

    def _sign(self, subject: str, key: SigningKey, extensions: bytes) -> str:
        now = datetime.now(UTC)
        span = _sequence(_time(now - timedelta(hours=1)), _time(now + timedelta(hours=1)))
        issuer_id = _extension("551d23", _sequence(_tagged(0x80, _key_id(self._key))))
        own_id = _extension("551d0e", _tagged(0x04, _key_id(key)))
        body = _sequence(
            _tagged(0xA0, _integer(2)),
            _integer(int.from_bytes(os.urandom(8), "big") | 1),
            _sequence(_ED25519),
            _name(self._name),
            span,
            _name(subject),
            _sequence(_sequence(_ED25519), _tagged(0x03, b"\x00" + bytes(key.verify_key))),
            _tagged(0xA3, _sequence(extensions, own_id, issuer_id)),
        )
        signature = self._key.sign(body).signature
        return _pem("CERTIFICATE", _sequence(body, _sequence(_ED25519), _tagged(0x03, b"\x00" + signature)))


def _base64url(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _tagged(tag: int, content: bytes) -> bytes:
    """Write one DER value."""
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + content


def _sequence(*parts: bytes) -> bytes:
    return _tagged(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tagged(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _name(text: str) -> bytes:
    return _sequence(_tagged(0x31, _sequence(_COMMON_NAME, _tagged(0x0C, text.encode()))))


def _time(moment: datetime) -> bytes:
    return _tagged(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())


def _extension(oid: str, content: bytes, *, critical: bool = False) -> bytes:
    flag = b"\x01\x01\xff" if critical else b""
    return _sequence(_tagged(0x06, bytes.fromhex(oid)), flag, _tagged(0x04, content))


def _key_id(key: SigningKey) -> bytes:
    return hashlib.sha1(bytes(key.verify_key)).digest()


def _pem(label: str, content: bytes) -> str:
    text = base64.encodebytes(content).decode()
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n"
