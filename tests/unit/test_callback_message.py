"""The bytes of a callback: each header once."""

from timer_service.adapters.webhook.message import Message, wire_bytes


def lines(**headers: str) -> list[str]:
    message = Message("https://receiver.example/hook", "POST", headers, b"{}")
    return wire_bytes(message, in_full=False).decode().split("\r\n")


def test_whatever_may_come_back_is_accepted_unless_the_caller_says_what() -> None:
    assert [line for line in lines() if line.startswith("accept:")] == ["accept: */*"]
    assert [line for line in lines(accept="text/csv") if line.startswith("accept:")] == ["accept: text/csv"]
