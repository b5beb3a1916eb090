"""Ask the broker which commands wait, in one round trip if possible."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nats.aio.msg import Msg
from nats.js.api import RetentionPolicy

from timer_client import wire
from timer_service.adapters.nats.answers import Answers
from timer_service.adapters.nats.client import Outgoing, TolerantClient
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.positions import microseconds
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import TenantId
from timer_service.ports.command_source import Backlog

ANSWER_TIMEOUT_S: Final = 5.0
NO_MESSAGE_FOUND: Final = 10037

_Answer = dict[str, Any]
_LOST: Final[_Answer] = {"error": {"description": "the connection was lost"}}
_SILENCE: Final[_Answer] = {"error": {"description": f"no answer within {ANSWER_TIMEOUT_S:g} s"}}
_NOT_TOLD: Final[_Answer] = {}


class BacklogQuestions:
    """Questions about the command stream over whichever connection there is; one goes before every firing."""

    def __init__(self, options: NatsOptions) -> None:
        api, stream, subjects = options.api_prefix, options.streams.commands, options.subjects
        self._info_subject = f"{api}.STREAM.INFO.{stream}"
        self._get_subject = f"{api}.STREAM.MSG.GET.{stream}"
        self._subjects = subjects
        # Only the subjects of valid commands, a few for each tenant: however many others a tenant makes up,
        # an answer does not grow, and what can only be refused holds up nothing.
        self._lists = [
            Outgoing(self._info_subject, _json({"subjects_filter": subjects.command("*", command_type)}))
            for command_type in wire.COMMAND_TYPES
        ]
        # Where nothing at all waits, the stream's information says so without a list, for half the price.
        self._plain = [Outgoing(self._info_subject, b"")]
        self._some_waited = False
        self._may_read = True
        self._answers = Answers(_read, unanswered=_SILENCE, lost=_LOST, too_large=_NOT_TOLD)

    async def start(self, client: TolerantClient) -> None:
        """Listen for answers."""
        await self._answers.start(client)

    def lost(self) -> None:
        """Stop waiting for answers that can no longer come."""
        self._may_read = True
        self._answers.lost()

    def error_reported(self, error: Exception) -> None:
        """Do without reading single messages if we may not: the broker sends no answer then."""
        if self._get_subject.lower() in str(error).lower():
            self._may_read = False
            self._answers.settle(_NOT_TOLD, self._get_subject)

    async def ask(self, beyond: Mapping[TenantId, int], handled_sequence: int) -> Backlog:
        """Ask whether anything waits, and whose it is if there may be something.

        Nobody can make up messages that the stream does not count: if it has none, nobody's command waits.
        """
        if not beyond and not self._some_waited:
            told = await self._ask(self._plain)
            if not _has_messages(told[0]):
                return self._backlog(told, {}, handled_sequence)
        asked = list(beyond) if self._may_read else []
        types = wire.COMMAND_TYPES
        reads = [self._read_next(tenant, kind, beyond[tenant]) for tenant in asked for kind in types]
        answers = await self._ask([*self._lists, *reads])
        lists, found = answers[: len(types)], answers[len(types) :]
        self._some_waited = any(map(_has_messages, lists))
        each = [found[start : start + len(types)] for start in range(0, len(found), len(types))]
        oldest = {
            tenant: _oldest(of_tenant)
            for tenant, of_tenant in zip(asked, each, strict=True)
            if all(_is_told(answer) for answer in of_tenant)
        }
        return self._backlog(lists, oldest, handled_sequence)

    async def stored_us(self, sequence: int) -> int:
        """Return when the message under a sequence was stored; 0 if there is none or we may not read it."""
        if not self._may_read:
            return 0
        [answer] = await self._ask([Outgoing(self._get_subject, _json({"seq": sequence}))])
        message = answer.get("message")
        return 0 if message is None else microseconds(message["time"])

    def _read_next(self, tenant_id: TenantId, command_type: str, beyond: int) -> Outgoing:
        subject = self._subjects.command(tenant_id, command_type)
        return Outgoing(self._get_subject, _json({"seq": beyond + 1, "next_by_subj": subject}))

    async def _ask(self, questions: Sequence[Outgoing]) -> list[_Answer]:
        answers = await self._answers.to(questions, ANSWER_TIMEOUT_S)
        for answer in answers:
            if answer is _SILENCE or answer is _LOST:
                raise _no_answer(answer)
        return answers

    def _backlog(
        self, lists: Sequence[_Answer], oldest: Mapping[TenantId, int | None], handled_sequence: int
    ) -> Backlog:
        states = [_state(answer) for answer in lists]
        told = [state.get("subjects") or {} for state in states]
        complete = all(answer["total"] == len(seen) for answer, seen in zip(lists, told, strict=True))
        if len({answer["created"] for answer in lists}) > 1:
            raise BusUnavailable("the command stream was recreated just now")
        tenants: frozenset[TenantId] | None = None
        if lists[0].get("config", {}).get("retention") not in (None, RetentionPolicy.WORK_QUEUE):
            tenants = frozenset()  # Commands stay here although they are applied: that proves nothing.
        elif complete:
            start = len(self._subjects.commands_prefix)
            tenants = frozenset(TenantId(s[start : s.rindex(".")]) for seen in told for s in seen)
        return Backlog(
            stream=lists[0]["created"],
            first_sequence=states[-1]["first_seq"],
            last_sequence=states[0]["last_seq"],
            handled_sequence=handled_sequence,
            tenants=tenants,
            oldest=oldest,
        )


def _read(message: Msg) -> _Answer:
    if message.headers and message.headers.get("Status") == "503":
        return {"error": {"description": "JetStream does not answer"}}
    try:
        answer = json.loads(message.data)
    except ValueError:
        return {"error": {"description": "an answer that is not JSON"}}
    return answer if isinstance(answer, dict) else {"error": {"description": "an answer of another kind"}}


def _state(answer: _Answer) -> _Answer:
    if "state" not in answer:
        raise _no_answer(answer)
    state: _Answer = answer["state"]
    return state


def _no_answer(answer: _Answer) -> BusUnavailable:
    detail = answer.get("error", {}).get("description", "not a stream's information")
    return BusUnavailable(f"the command stream does not answer: {detail}")


def _has_messages(answer: _Answer) -> bool:
    """Return whether the stream has any messages, valid commands or not."""
    return bool(_state(answer)["messages"])


def _is_told(answer: _Answer) -> bool:
    """Return whether the broker found a message, or says for certain that there is none."""
    return "message" in answer or answer.get("error", {}).get("err_code") == NO_MESSAGE_FOUND


def _oldest(answers: Sequence[_Answer]) -> int | None:
    return min((answer["message"]["seq"] for answer in answers if "message" in answer), default=None)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()
