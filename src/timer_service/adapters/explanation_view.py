"""Explanations as the APIs show them."""

from timer_client import wire
from timer_service.adapters.codec import timer_view
from timer_service.ports.explanation import Explanation

MAX_LETTERS = 20


def explanation_view(explanation: Explanation) -> wire.ExplainAnswer:
    """Return an explanation as a tenant sees it."""
    facts = explanation.facts
    letters = facts.letters.letters[:MAX_LETTERS] if facts.letters is not None else ()
    trail = facts.trail
    return wire.ExplainAnswer.model_construct(
        cause=explanation.cause.value,
        text=explanation.text,
        is_well=explanation.is_well,
        at=facts.now,
        since=explanation.since,
        timer=None if facts.timer is None else timer_view(facts.timer),
        letters=[
            wire.LetterView.model_construct(
                letter=letter.number,
                reason=letter.reason,
                detail=letter.detail,
                received_at=letter.received_at,
            )
            for letter in letters
        ]
        or None,
        stream=None if trail is None or trail.sequence is None else trail.stream,
        sequence=None if trail is None else trail.sequence,
        consumers=None
        if trail is None
        else [
            wire.ConsumerView.model_construct(name=reader.name, reading=reader.reading.value)
            for reader in trail.readers
        ]
        or None,
        unknown=list(facts.unknown) or None,
    )
