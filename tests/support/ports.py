"""Ports for servers of tests, of which nobody else takes one in between."""

import contextlib
import errno
import fcntl
import itertools
import os
import socket
import tempfile
from functools import cache
from pathlib import Path

# Below the range from which systems take the port of an outgoing connection: a port that the kernel names
# is free now, and may belong to anybody's connection by the time a server binds it.
PORTS = range(20_000, 32_768)


def free_port() -> int:
    """Return a port of the loopback that no other test is given while this process lives."""
    for port in itertools.islice(_candidates(), len(PORTS)):
        if _is_ours(port) and _is_free(port):
            return port
    raise AssertionError(f"all ports from {PORTS.start} to {PORTS.stop - 1} are taken")


@cache
def _candidates() -> "itertools.cycle[int]":
    start = os.getpid() * 101 % len(PORTS)
    return itertools.cycle([*PORTS[start:], *PORTS[:start]])


@cache
def _claims() -> int:
    """Open the file of which each byte stands for a port; its locks end with the process."""
    path = Path(tempfile.gettempdir()) / f"timer-service-test-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_ours(port: int) -> bool:
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
