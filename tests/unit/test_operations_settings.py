"""The table of settings in docs/operations.md is the one of the code.

`python -m tests.unit.test_operations_settings` writes it anew.
"""

from collections.abc import Iterator

from tests.support.documents import ROOT, read, table
from timer_service.config import Settings, env_name

DOCUMENT = "docs/operations.md"
HEADER = "| variable | default | meaning | allowed |\n|---|---|---|---|\n"


def test_the_table_lists_every_setting_as_the_code_has_it() -> None:
    described = [tuple(row.values()) for row in table(DOCUMENT, "variable")]

    assert described == list(_settings())


def _settings() -> Iterator[tuple[str, str, str, str]]:
    for name, field in Settings.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        yield f"`{env_name(name)}`", _shown(field.default), str(field.description), str(extra["allowed"])


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _write_table() -> None:
    before, _, rest = read(DOCUMENT).partition(HEADER)
    after = rest[rest.index("\n\n") :]
    rows = "\n".join(f"| {' | '.join(row)} |" for row in _settings())
    (ROOT / DOCUMENT).write_text(before + HEADER + rows + after, "utf-8")


if __name__ == "__main__":
    _write_table()
