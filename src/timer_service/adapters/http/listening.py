"""The socket of an HTTP server, which can be opened before the server is loaded."""

import socket
from typing import Final

from timer_service.domain.errors import CriticalError

BACKLOG: Final = 128


def listen(host: str, *ports: int, remedy: str) -> socket.socket:
    """Listen on the first of these ports that is free (0: any); `remedy` says what to do if none is."""
    for port in ports:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            if port == ports[-1]:
                what = f"cannot listen on {host}:{ports[0]} ({error.strerror})"
                raise CriticalError(f"{what}: {remedy}") from error
    raise AssertionError("no port was named")
