"""Read what the broker sends, message by message."""

from typing import Any, Final

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

_END: Final = b"\r\n"
_WITH_REPLY: Final = 5
"""As many words has the first line of a message that names where to reply."""

RawMessage = tuple[bytes, bytes, bytes, bytes | None]
"""Subject, reply subject, body and headers, as the broker sent them."""


class MessageParser(Parser):
    """nats-py's parser, except for messages.

    It finds them by patterns, for which every white space separates, and stops for good at a subject that has
    any. Here a line is split at its spaces, which is all that a server separates by, for half of the price.
    Messages of one subscription are handed over together, as long as nothing else comes between them.
    """

    def reset(self) -> None:
        """Forget what belongs to a connection that is gone."""
        super().reset()
        self._rest = b""

    async def parse(self, data: bytes = b"") -> None:
        """Hand over every message that is whole, and keep the rest until more comes."""
        client: Any = self.nc
        together: list[RawMessage] = []
        data, self._rest = self._rest + data, b""
        start = 0
        while (end := data.find(_END, start)) >= 0:
            words = data[start:end].split(b" ")
            body = after = end + len(_END)
            if words[0] not in (b"MSG", b"HMSG"):
                await client.deliver_together(together)
                await super().parse(data[start:body])
                start = body
                continue
            try:
                head = int(words.pop(-2)) if words[0] == b"HMSG" else 0
                after += int(words[-1]) + len(_END)
                subject, number, reply = words[1:4] if len(words) == _WITH_REPLY else (*words[1:3], b"")
                subscription = int(number)
            except (ValueError, IndexError) as error:
                raise ProtocolError("nats: malformed MSG") from error
            if after > len(data):
                break
            headers, content = data[body : body + head] or None, data[body + head : after - len(_END)]
            if subscription == client.taken_together:
                together.append((subject, reply, content, headers))
            else:
                await client.deliver_together(together)
                await client._process_msg(subscription, subject, reply, content, headers)  # noqa: SLF001 - as nats-py does
            start = after
        self._rest = data[start:]
        await client.deliver_together(together)
