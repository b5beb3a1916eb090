"""The pages of settings and commands are those of the code; `make docs` writes them."""

import pytest

from tests.support.documents import read, table
from tests.support.reference import PAGES, written
from timer_service.cli import exits


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_make_docs_writes(page: str) -> None:
    assert read(page) == written(page)


def test_every_exit_code_is_listed() -> None:
    described = [int(row["exit code"]) for row in table("docs/cli.md", "exit code")]

    assert described == sorted(value for name, value in vars(exits).items() if name.startswith("EXIT_"))
