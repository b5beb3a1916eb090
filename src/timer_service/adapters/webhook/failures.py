"""What an error of the HTTP client means; no text of it names an address that a tenant should not learn."""

import os
import socket

import aiohttp

from timer_service.adapters.webhook.guard import DeniedAddress
from timer_service.domain.delivery import Blocked, Trouble, Unreachable


def result_of(error: aiohttp.ClientError) -> Blocked | Unreachable:
    """Return how an attempt ended that got no answer."""
    match error:
        case aiohttp.ClientConnectorError() | aiohttp.ClientSSLError():
            return _not_connected(error)
        case aiohttp.ClientHttpProxyError(status=status):
            return Unreachable(Trouble.CONNECT, f"the proxy answered {status}")
        case aiohttp.ClientOSError() | aiohttp.ServerDisconnectedError():
            return Unreachable(Trouble.RESET, "the connection was closed before an answer")
        case _:
            return Unreachable(Trouble.RESET, "the answer is not valid HTTP")


def _not_connected(error: aiohttp.ClientError) -> Blocked | Unreachable:
    match error:
        case aiohttp.ClientConnectorError(os_error=DeniedAddress() as denied):
            return Blocked(blocked_by(denied))
        case aiohttp.ClientConnectorCertificateError(certificate_error=cause):
            text = getattr(cause, "verify_message", "") or "the certificate is not valid"
            return Unreachable(Trouble.TLS, str(text))
        case aiohttp.ClientSSLError():
            return Unreachable(Trouble.TLS, "the handshake failed")
        case aiohttp.ClientConnectorDNSError(os_error=cause):
            return Unreachable(Trouble.DNS, reason_of(cause))
        case aiohttp.ClientProxyConnectionError(os_error=cause):
            return Unreachable(Trouble.CONNECT, f"the proxy: {reason_of(cause)}")
        case aiohttp.ClientConnectorError(os_error=cause):
            return Unreachable(Trouble.CONNECT, reason_of(cause))
        case _:
            return Unreachable(Trouble.CONNECT, "no connection")


def blocked_by(error: DeniedAddress) -> str:
    """Return which rule denies an address, without the address."""
    return f"the address is not called: {error.reason}"


def reason_of(error: OSError) -> str:
    """Return what the system calls an error, without the address that its text may hold."""
    if isinstance(error, socket.gaierror):
        return str(error.strerror or "the name was not found").lower()
    return os.strerror(error.errno).lower() if error.errno else "no answer in time"
