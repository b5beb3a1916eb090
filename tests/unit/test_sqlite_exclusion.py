"""Claims and requests that keep off each other's timers, without a database."""

from tests.support.timers import schedule
from timer_service.adapters.sqlite.exclusion import Exclusion
from timer_service.domain.callback import Sink

ONE, OTHER = schedule("one").key, schedule("other").key


def test_a_claimed_timer_is_closed_to_requests_until_it_is_given_back() -> None:
    exclusion = Exclusion()
    exclusion.begin_look()
    assert exclusion.claim({ONE}) == {ONE}

    with exclusion.requesting([ONE, OTHER]) as held:
        assert list(held) == [OTHER]
    exclusion.give_back({ONE})
    with exclusion.requesting([ONE, OTHER]) as held:
        assert list(held) == [ONE, OTHER]


def test_a_look_leaves_out_what_other_claims_hold() -> None:
    exclusion = Exclusion()
    exclusion.begin_look()
    exclusion.claim({ONE})

    assert set(exclusion.begin_look()) == {ONE}


def test_what_another_claim_holds_is_not_claimed_again() -> None:
    exclusion = Exclusion()
    exclusion.begin_look()
    exclusion.claim({ONE})
    exclusion.begin_look()

    assert exclusion.claim({ONE, OTHER}) == {OTHER}


def test_a_look_that_fails_notes_no_more_requests() -> None:
    exclusion = Exclusion()
    exclusion.begin_look()
    exclusion.end_look()
    with exclusion.requesting([ONE]):
        pass

    assert exclusion._asked_since == {}


def test_a_timer_with_a_request_under_way_is_not_claimed() -> None:
    exclusion = Exclusion()

    with exclusion.requesting([ONE]):
        exclusion.begin_look()

        assert exclusion.claim({ONE, OTHER}) == {OTHER}


def test_a_timer_whose_request_ended_since_the_look_began_is_not_claimed() -> None:
    exclusion = Exclusion()
    with exclusion.requesting([ONE]):
        exclusion.begin_look()
    with exclusion.requesting([OTHER]):
        pass

    assert exclusion.claim({ONE, OTHER}) == set()


def test_a_timer_whose_request_ended_before_the_look_began_is_claimed() -> None:
    exclusion = Exclusion()
    with exclusion.requesting([ONE]):
        pass

    exclusion.begin_look()

    assert exclusion.claim({ONE}) == {ONE}


def test_a_timer_that_a_request_kept_from_a_claim_is_closed_to_others_until_the_next_claim() -> None:
    exclusion = Exclusion()
    with exclusion.requesting([ONE]):
        exclusion.begin_look()
        exclusion.claim({ONE})
        with exclusion.requesting([ONE]) as held:
            assert list(held) == []

    exclusion.begin_look()

    assert exclusion.claim({ONE}) == {ONE}


def test_two_requests_for_a_timer_hold_it_until_the_second_has_ended() -> None:
    exclusion = Exclusion()
    with exclusion.requesting([ONE]):
        with exclusion.requesting([ONE]):
            pass
        exclusion.begin_look()

        assert exclusion.claim({ONE}) == set()


def test_requests_that_have_ended_leave_nothing_in_memory() -> None:
    exclusion = Exclusion()
    for number in range(100):
        with exclusion.requesting([schedule(f"order-{number}").key]):
            pass

    assert (dict(exclusion._asking), exclusion._asked_since) == ({}, {})


def test_a_look_for_one_sink_takes_no_note_away_from_one_for_another() -> None:
    exclusion = Exclusion()
    exclusion.begin_look(Sink.HTTP)
    with exclusion.requesting([ONE]):
        pass
    exclusion.begin_look(Sink.BUS)

    # It may have been one with a callback when the look began that has one.
    assert exclusion.claim({ONE}, Sink.HTTP) == set()
    assert exclusion.claim({ONE}, Sink.BUS) == {ONE}
