"""A few cancels at the due time; `make callback-races`, `-kills` and `-cluster` are the long runs."""

from pathlib import Path

from tests.torture.callbacks import races


async def test_a_cancelled_timer_is_never_called_and_a_refused_one_is_once(tmp_path: Path) -> None:
    counts = await races(tmp_path, 30)

    assert counts["won by the cancel"] + counts["won by the due time"] == counts["races"] == 30
    assert not any(
        counts[name]
        for name in (
            *("cancelled and called all the same", "refused and never called"),
            *("called more than once", "called before the due time"),
        )
    )
