"""NATS over a plain blocking socket.

Load generator, listener and harness use it in place of a full client, because everything shares the
machine: what they take is missing to what they measure.
"""

import itertools
import json
import socket
import time
from typing import Any, Final, NamedTuple

CONNECT: Final = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
READ_BYTES: Final = 256 * 1024
ANSWER_TIMEOUT_S: Final = 30.0

_inboxes = itertools.count(1)


class Message(NamedTuple):
    """One message as it came in."""

    subject: str
    body: bytes
    received_ns: int
    """The wall clock when the last of it was read."""


class NatsError(Exception):
    """The server or JetStream said no."""


class NatsSocket:
    """One connection, one thread."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._pongs = 0
        self._subscriptions = 0
        self.inbox = f"_INBOX.bench{time.time_ns()}-{next(_inboxes)}"
        self._listens_for_answers = False
        self.send(b"CONNECT " + json.dumps(CONNECT).encode() + b"\r\n")
        self.flush()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes of the protocol as they are."""
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        self._socket.sendall(data)

    def subscribe(self, subject: str) -> None:
        """Listen on a subject; in force when this returns."""
        self._subscriptions += 1
        self.send(f"SUB {subject} {self._subscriptions}\r\n".encode())
        self.flush()

    def flush(self) -> None:
        """Wait until the server has handled everything sent so far; nothing may be expected meanwhile."""
        pongs = self._pongs
        self.send(b"PING\r\n")
        while self._pongs == pongs:
            if not self._receive(ANSWER_TIMEOUT_S):
                raise NatsError("the server does not answer")
            self._parse()

    def read(self, timeout_s: float) -> list[Message]:
        """Return what came in; nothing where nothing comes within the time."""
        return self._parse() if self._receive(timeout_s) else []

    def request(self, subject: str, body: object = None) -> dict[str, Any]:
        """Ask JetStream and return its answer; only on a connection that subscribes to nothing else."""
        if not self._listens_for_answers:
            self.subscribe(f"{self.inbox}.*")
            self._listens_for_answers = True
        data = b"" if body is None else json.dumps(body).encode()
        self.send(f"PUB {subject} {self.inbox}.a {len(data)}\r\n".encode() + data + b"\r\n")
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < deadline:
            for message in self.read(ANSWER_TIMEOUT_S):
                answer: dict[str, Any] = json.loads(message.body or b'{"error": "nobody answers"}')
                if "error" in answer:
                    raise NatsError(f"{subject}: {answer['error']}")
                return answer
        raise NatsError(f"{subject}: no answer")

    def _receive(self, timeout_s: float) -> bool:
        self._socket.settimeout(max(timeout_s, 0.0001))
        try:
            data = self._socket.recv(READ_BYTES)
        except TimeoutError:
            return False
        if not data:
            raise NatsError("the server closed the connection")
        self._buffer += data
        return True

    def _parse(self) -> list[Message]:
        now, buffer, at = time.time_ns(), self._buffer, 0
        messages = []
        while (end := buffer.find(b"\r\n", at)) >= 0:
            line = buffer[at:end]
            if line.startswith((b"MSG", b"HMSG")):
                tokens = line.split()
                body_at = end + 2
                after = body_at + int(tokens[-1])
                if len(buffer) < after + 2:
                    break
                if line.startswith(b"H"):
                    body_at += int(tokens[-2])
                messages.append(Message(tokens[1].decode(), buffer[body_at:after], now))
                at = after + 2
                continue
            self._on_control(line)
            at = end + 2
        self._buffer = buffer[at:]
        return messages

    def _on_control(self, line: bytes) -> None:
        if line == b"PING":
            self.send(b"PONG\r\n")
        elif line == b"PONG":
            self._pongs += 1
        elif line.startswith(b"-ERR"):
            raise NatsError(line.decode())
