"""Secrets and signing keys on the command line, and a receiver to try callbacks out with."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.callbacks import keyring_of, request_to, sending
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import run_cli
from tests.support.timers import ACME
from timer_service.adapters.sealing import SecretKeys
from timer_service.adapters.sqlite.secrets import SqliteSecretStore, secrets_path
from timer_service.adapters.webhook.signature import read_verifier
from timer_service.domain.callback import Signing
from timer_service.domain.delivery import Answered
from timer_service.secret_keys import new_secret_key, read_secret_keys

Finished = subprocess.CompletedProcess[str]


def cli(folder: Path, *arguments: str, given: str) -> Finished:
    """Run a command that reads a line."""
    return subprocess.run(
        [sys.executable, "-m", "timer_service", *arguments],
        cwd=folder,
        env={"TIMER_DB_PATH": "timers.db", "PATH": ""},
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_secret_is_set_from_stdin_listed_masked_and_removed(tmp_path: Path) -> None:
    first = cli(tmp_path, "secrets", "set", "--tenant", "acme", "token", given="s3cret-value\n")
    listed = run_cli("secrets", "list", "--tenant", "acme", "--json", cwd=tmp_path, db_path="timers.db")
    removed = run_cli("secrets", "remove", "--tenant", "acme", "token", cwd=tmp_path, db_path="timers.db")
    missing = run_cli("secrets", "remove", "--tenant", "acme", "token", cwd=tmp_path, db_path="timers.db")

    assert first.stdout == "acme/token set; callbacks use it within 5 s\n"
    assert json.loads(listed.stdout)["name"] == "token"
    assert removed.returncode == 0
    assert (missing.returncode, missing.stderr) == (4, "timer-service: acme has no secret named 'token'\n")
    assert "s3cret" not in "".join([first.stdout, first.stderr, listed.stdout, removed.stdout])
    assert all(b"s3cret" not in path.read_bytes() for path in tmp_path.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["timers.db.secret-key", "timers.db.secrets"]


def test_a_value_that_could_not_be_sent_is_refused_in_one_line(tmp_path: Path) -> None:
    refused = cli(tmp_path, "secrets", "set", "--tenant", "acme", "token", given="\n")

    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "timer-service: a secret must be 1 to 4096 printable ASCII characters\n"


@pytest.mark.parametrize(
    "command",
    [("secrets", "set", "token"), ("signing-keys", "rotate"), ("signing-keys", "list"), ("listen",)],
)
def test_nothing_is_kept_for_a_tenant_that_cannot_be_one(tmp_path: Path, command: tuple[str, ...]) -> None:
    refused = run_cli(*command, "--tenant", "a.b", cwd=tmp_path, db_path="timers.db")

    assert (refused.returncode, "--tenant: must be 1 to 64 of" in refused.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_keys_rotate_and_the_key_of_an_ed25519_pair_stays_private(tmp_path: Path) -> None:
    none = run_cli("signing-keys", "list", "--tenant", "acme", cwd=tmp_path, db_path="timers.db")
    for kind in ("ed25519", "ed25519", "hmac"):
        made = run_cli(
            *("signing-keys", "rotate", "--tenant", "acme", "--kind", kind, "--json"),
            cwd=tmp_path,
            db_path="timers.db",
        )
        read_verifier(json.loads(made.stdout)["key"])
    listed = run_cli("signing-keys", "list", "--tenant", "acme", "--json", cwd=tmp_path, db_path="timers.db")

    keys = [json.loads(line) for line in listed.stdout.splitlines()]
    assert none.stdout.startswith("no keys yet")
    assert [(key["name"], key["endsAt"] is None) for key in keys] == [
        ("ed25519-000001", False),
        ("ed25519-000002", True),
        ("hmac-000001", True),
    ]
    assert [key["key"][:5] for key in keys] == ["whpk_", "whpk_", "*****"]


def test_looking_makes_no_file_where_there_is_nothing(tmp_path: Path) -> None:
    looks = [
        ("signing-keys", "list", "--tenant", "acme"),
        ("secrets", "list", "--tenant", "acme"),
        ("secrets", "rewrap"),
        ("keys", "list"),
    ]

    said = [run_cli(*look, cwd=tmp_path, db_path="timers.db") for look in looks]

    assert [each.returncode for each in said] == [0] * len(looks)
    assert list(tmp_path.iterdir()) == []


async def test_a_lost_key_file_is_not_made_again_by_looking(tmp_path: Path) -> None:
    store = SqliteSecretStore(secrets_path(tmp_path / "timers.db"))
    await keyring_of(store).set_named(ACME, "token", "value")

    said = run_cli("secrets", "list", "--tenant", "acme", cwd=tmp_path, db_path="timers.db")

    assert (said.returncode, said.stdout) == (1, "")
    assert "sealed with a key that is not in TIMER_SECRET_KEYS" in said.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["timers.db.secrets"]


async def test_another_key_seals_after_rewrapping(tmp_path: Path) -> None:
    old, new = new_secret_key(), new_secret_key()
    store = SqliteSecretStore(secrets_path(tmp_path / "timers.db"))
    await keyring_of(store, SecretKeys(read_secret_keys(old))).set_named(ACME, "token", "value")
    command = partial(run_cli, cwd=tmp_path, db_path="timers.db")

    locked = command("secrets", "list", "--tenant", "acme", secret_keys=new)
    rewrapped = command("secrets", "rewrap", secret_keys=f"{new},{old}")
    listed = command("secrets", "list", "--tenant", "acme", secret_keys=new)

    assert locked.returncode == 1
    assert locked.stderr.endswith("add the key that sealed it to TIMER_SECRET_KEYS\n")
    assert rewrapped.stdout == "1 secrets sealed with the first key\n"
    assert listed.stdout.startswith("token  ***** (")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"secret_keys": "short"}, "TIMER_SECRET_KEYS"),
        ({"callback_allow": "10.0.0.1/8"}, "TIMER_CALLBACK_ALLOW"),
        ({"callback_proxy": "https://proxy"}, "TIMER_CALLBACK_PROXY"),
        ({"callback_proxy_login": "short"}, "TIMER_CALLBACK_PROXY_LOGIN"),
        ({"store_url": "postgresql://localhost/x"}, "TIMER_SECRET_KEYS must be set"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    finished = run_cli("secrets", "list", "--tenant", "acme", cwd=tmp_path, **settings)

    assert finished.returncode == 2
    assert said in finished.stderr
    assert "short" not in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


async def test_listen_prints_each_callback_checks_it_and_fails_on_request(tmp_path: Path) -> None:
    keyring = keyring_of()
    key = (await keyring.secrets_for(ACME, Signing.ED25519)).signing[0].key
    port = free_port()
    arguments = ["listen", "--port", str(port), "--key", str(key.public_text), "--fail-first", "1", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "timer_service", *arguments], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as listening:
        try:
            async with sending(keyring=keyring) as sender:
                request = request_to(f"http://127.0.0.1:{port}/hook?a=1", body=b'{"a":1}')
                while not isinstance(first := await sender.send(request), Answered):
                    pass
                second = await sender.send(request)
            assert listening.stdout is not None
            facts = [json.loads(listening.stdout.readline()) for _ in range(2)]
        finally:
            listening.terminate()

    assert [first.status, second] == [503, Answered(200)]
    assert facts[0] == {
        "request": "POST /hook?a=1",
        "id": str(request.id),
        "timerId": "order-1",
        "attempt": "1",
        "latenessMs": "1250",
        "signature": "too old",
        "seenBefore": False,
        "answered": 503,
        "body": '{"a":1}',
    }
    assert (facts[1]["seenBefore"], facts[1]["answered"]) == (True, 200)
