"""What an error on the way to a receiver means, without an address that a tenant should not learn."""

import os
import socket
import ssl

from timer_service.adapters.webhook.guard import DeniedAddress
from timer_service.adapters.webhook.link import ClosedEarly, NotHttp
from timer_service.domain.delivery import Blocked, Trouble, Unreachable


class NoConnection(Exception):
    """There is no connection to a receiver."""

    def __init__(self, result: Blocked | Unreachable) -> None:
        super().__init__()
        self.result = result
        """What an attempt came to that needed it."""


def not_found(error: OSError) -> NoConnection:
    """Return what is known after a name could not be looked up."""
    if isinstance(error, DeniedAddress):
        return NoConnection(Blocked(blocked_by(error)))
    return NoConnection(Unreachable(Trouble.DNS, reason_of(error)))


def not_dialled(error: OSError, *, is_proxy: bool) -> NoConnection:
    """Return what is known after no address could be reached."""
    if isinstance(error, DeniedAddress):
        return NoConnection(Blocked(blocked_by(error)))
    reason = reason_of(error)
    return NoConnection(Unreachable(Trouble.CONNECT, f"the proxy: {reason}" if is_proxy else reason))


def no_handshake(error: OSError) -> NoConnection:
    """Return what is known after a connection was made, but no TLS session."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NoConnection(Unreachable(Trouble.TLS, error.verify_message or "the certificate is not valid"))
    if isinstance(error, ssl.SSLError):
        return NoConnection(Unreachable(Trouble.TLS, "the handshake failed"))
    return NoConnection(Unreachable(Trouble.CONNECT, reason_of(error)))


def proxy_refused(status: int) -> NoConnection:
    """Return what is known after the proxy did not make a way."""
    return NoConnection(Unreachable(Trouble.CONNECT, f"the proxy answered {status}"))


def result_of(error: NoConnection | ClosedEarly | NotHttp) -> Blocked | Unreachable:
    """Return how an attempt ended that got no answer."""
    match error:
        case NoConnection(result=result):
            return result
        case ClosedEarly():
            return Unreachable(Trouble.RESET, "the connection was closed before an answer")
        case NotHttp():
            return Unreachable(Trouble.RESET, "the answer is not valid HTTP")


def blocked_by(error: DeniedAddress) -> str:
    """Return which rule denies an address, without the address."""
    return f"callbacks may not go to the address: {error.reason}"


def reason_of(error: OSError) -> str:
    """Return what the system calls an error, without the address that its text may hold."""
    if isinstance(error, socket.gaierror):
        return str(error.strerror or "the name was not found").lower()
    return os.strerror(error.errno).lower() if error.errno else "no answer in time"
