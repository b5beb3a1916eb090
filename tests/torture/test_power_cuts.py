"""A few power cuts of the store; `make power-cuts` makes thousands. And they prove themselves."""

from pathlib import Path
from random import Random

import pytest

from tests.torture.platter import IN_ORDER, KEPT, LOST, Platter
from tests.torture.power_cuts import cut_everywhere, recorded
from tests.torture.recorder import Created, Deleted, Synced, Truncated, Written


async def test_nothing_acknowledged_is_gone_after_a_power_cut(tmp_path: Path) -> None:
    recording = await recorded(tmp_path)

    cuts = await cut_everywhere(recording, tmp_path / "cut", 40)

    assert cuts.problems == []
    assert cuts.count == 40


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
async def test_a_store_that_syncs_less_loses_what_it_has_acknowledged(tmp_path: Path, level: str) -> None:
    pragmas = {"PRAGMA synchronous = FULL": f"PRAGMA synchronous = {level}"}
    recording = await recorded(tmp_path, pragmas=pragmas)

    cuts = await cut_everywhere(recording, tmp_path / "cut", 25)

    assert cuts.problems != []


def test_a_power_cut_keeps_what_was_synced_and_may_keep_the_rest() -> None:
    platter, random = Platter(), Random(1)
    synced, later = b"a" * 1024, b"b" * 1024
    for step in (Created("log"), Written("log", 0, synced), Synced("log", folder=True)):
        platter.follow(step)
    assert (platter.is_clean, platter.cut(LOST, random)) == (True, {"log": synced})

    platter.follow(Written("log", 512, later))
    platter.follow(Truncated("log", 600))

    assert platter.cut(LOST, random) == {"log": synced}
    assert platter.cut(KEPT, random) == {"log": synced[:512] + later[:88]}
    assert {platter.cut(IN_ORDER, random)["log"] for _ in range(100)} == {
        synced,
        synced[:512] + later[:512],
        synced[:512] + later,
        synced[:512] + later[:88],
    }


def test_a_file_that_was_deleted_and_made_again_may_be_the_old_one_after_a_power_cut() -> None:
    platter, random = Platter(), Random(1)
    for step in (Created("log"), Written("log", 0, b"old"), Synced("log", folder=True)):
        platter.follow(step)

    platter.follow(Deleted("log", synced=False))
    platter.follow(Created("log"))
    platter.follow(Written("log", 0, b"new"))

    assert platter.cut(LOST, random) == {"log": b"old"}
    assert platter.cut(KEPT, random) == {"log": b"new"}
    platter.follow(Synced("log", folder=True))
    assert platter.cut(LOST, random) == {"log": b"new"}
