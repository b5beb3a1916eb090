"""A short run of `make addresses`, and that it would notice."""

import pytest

from tests.fuzz.addresses import attack, is_forbidden


async def test_no_spelling_name_rebinding_or_redirect_leads_to_a_denied_address() -> None:
    counts = await attack(600, seed=1)

    assert counts["sockets to a denied range"] == 0
    assert counts["attempts"] >= 600
    assert counts["by rebinding"] > 0
    assert counts["blocked before a socket was made"] > 300
    # The attack is a real one: what is public was dialled.
    assert counts["sockets that were connected"] > 50


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "::1"]
)
def test_the_judge_knows_denied_addresses(address: str) -> None:
    assert is_forbidden(address)
    assert not is_forbidden("93.184.216.34")
