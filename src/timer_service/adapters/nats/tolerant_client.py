"""A NATS client that no message can stop.

nats-py ends its read loop for good when a message has a subject that is not UTF-8, one with a vertical tab
or form feed, or a header block that it cannot read; the server takes all of these. Such a message would be
delivered again and again, and stop the service each time. Here it arrives, and is refused like any other.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import nats.protocol.parser
from nats.aio.client import Client
from nats.aio.msg import Msg

_TOKEN: Final = rb"([^ \t\r\n]+)[ \t]+"

# The protocol separates by spaces and tabs only; nats-py takes every white space for a separator.
nats.protocol.parser.MSG_RE = re.compile(rb"\AMSG[ \t]+" + _TOKEN + _TOKEN + rb"(" + _TOKEN + rb")?(\d+)\r\n")
nats.protocol.parser.HMSG_RE = re.compile(
    rb"\AHMSG[ \t]+" + _TOKEN + _TOKEN + rb"(" + _TOKEN + rb")?(\d+)[ \t]+(\d+)\r\n"
)


class TolerantClient(Client):
    """The stock client, but for how it reads what others have sent."""

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return Msg(
            _client=self,
            subject=subject.decode("utf-8", "backslashreplace"),
            reply=reply.decode("utf-8", "backslashreplace"),
            data=data,
            headers=headers,
            _sid=sid,
        )

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        with suppress(Exception):
            found: Mapping[str, str] | None = await super()._process_headers(headers)
            return None if found is None else dict(found)
        return None
