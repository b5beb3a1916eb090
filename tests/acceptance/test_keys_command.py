"""`timer-service keys`: a key is shown once, listed without its secret, and revoked."""

import json
from pathlib import Path

import pytest

from tests.support.process import run_cli


def test_where_there_is_no_key_the_list_says_how_to_make_one(tmp_path: Path) -> None:
    assert run_cli("keys", "list", cwd=tmp_path).stdout == "no keys: `timer-service keys create` makes one\n"


def test_a_key_is_made_listed_and_revoked(tmp_path: Path) -> None:
    made = run_cli("keys", "create", "--tenant", "acme", "--scope", "read", "--note", "ci", cwd=tmp_path)
    key_id = made.stdout.split("_")[1]
    listed = run_cli("keys", "list", "--json", cwd=tmp_path)
    revoked = run_cli("keys", "revoke", key_id, cwd=tmp_path)
    unknown = run_cli("keys", "revoke", "nobody", cwd=tmp_path)
    after = run_cli("keys", "list", "--json", cwd=tmp_path)

    secret = made.stdout.strip().split("_", 2)[2]
    assert (made.returncode, len(secret), "shown only now" in made.stderr) == (0, 43, True)
    facts = json.loads(listed.stdout)
    assert (facts["id"], facts["tenantId"], facts["scopes"], facts["state"]) == (
        key_id,
        "acme",
        ["read"],
        "valid",
    )
    assert secret not in listed.stdout
    assert (revoked.returncode, unknown.returncode) == (0, 4)
    assert json.loads(after.stdout)["state"].startswith("revoked")
    assert (tmp_path / "event_service.db.keys").stat().st_mode & 0o077 == 0


def test_a_whole_key_can_be_revoked_and_is_never_repeated(tmp_path: Path) -> None:
    made = run_cli("keys", "create", "--tenant", "acme", cwd=tmp_path).stdout.strip()

    revoked = run_cli("keys", "revoke", made, cwd=tmp_path)
    unknown = run_cli("keys", "revoke", "tmr_0123456789ab_secret", cwd=tmp_path)

    assert (revoked.returncode, revoked.stdout) == (0, f"{made.split('_')[1]} of tenant acme is revoked\n")
    assert (unknown.returncode, unknown.stderr) == (4, "timer-service: there is no key '0123456789ab'\n")


@pytest.mark.parametrize("lifetime", ["0d", "999999999d"])
def test_a_key_is_valid_for_a_while_and_not_forever_by_mistake(tmp_path: Path, lifetime: str) -> None:
    refused = run_cli("keys", "create", "--tenant", "acme", "--expires-in", lifetime, cwd=tmp_path)

    assert (refused.returncode, refused.stdout, "at most 100 years" in refused.stderr) == (2, "", True)
    assert run_cli("keys", "list", cwd=tmp_path).stdout.startswith("no keys")


def test_a_tenant_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    refused = run_cli("keys", "create", "--tenant", "a.b", cwd=tmp_path)

    assert (refused.returncode, "--tenant: must be" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["keys"], "the following arguments are required: action"),
        (["keys", "make"], "argument action: invalid choice: 'make'"),
        (["key"], "argument command: invalid choice: 'key'"),
    ],
)
def test_an_action_that_is_missing_or_unknown_is_called_one(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    refused = run_cli(*arguments, cwd=tmp_path)

    assert (refused.returncode, told in refused.stderr) == (2, True)
