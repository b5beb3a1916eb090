"""How a setting is described."""

from typing import Any, Final

from pydantic import Field

A_FILE: Final = "a file that this user may read"


def setting(default: Any, description: str, allowed: str, **constraints: Any) -> Any:
    """Describe a setting: `allowed` is what an error tells the user."""
    return Field(default, description=description, json_schema_extra={"allowed": allowed}, **constraints)
