"""Whatever strangers send is read or refused; `make fuzz` feeds millions of inputs and times each."""

import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.hostile import hostile
from tests.fuzz.limits import SLOWEST_S, TooSlow, Watch
from tests.fuzz.stored import StoredRequests, made_up
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_what_fuzzing_has_found_worth_keeping_is_read_or_refused(target: str) -> None:
    kept = corpus.load(target)

    for data in kept:
        TARGETS[target](data)

    assert len(kept) > 10


@pytest.mark.parametrize("target", TARGETS)
def test_nearly_valid_inputs_are_read_or_refused(target: str) -> None:
    random = Random(target)

    for _ in range(1_000):
        TARGETS[target](hostile(random, target))


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=100, deadline=None)
@given(data=st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode)))
def test_any_bytes_are_read_or_refused(target: str, data: bytes) -> None:
    TARGETS[target](data)


def test_a_slow_input_does_not_pass() -> None:
    def slow(data: bytes) -> None:
        began_s = time.thread_time()
        while time.thread_time() - began_s <= SLOWEST_S:
            pass

    with pytest.raises(TooSlow):
        Watch(slow).feed(b"")


def test_a_real_database_answers_or_refuses_whatever_is_asked() -> None:
    random = Random("stored")

    with StoredRequests() as target:
        for data in corpus.load("call"):
            target.feed(data)
        for _ in range(100):
            target.feed(made_up(random))
