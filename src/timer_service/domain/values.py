"""Dataclasses for values that every timer needs by the dozen."""

from typing import TYPE_CHECKING, Any

__all__ = ["value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen: bool, **options: Any) -> Any:
        """Return `dataclass`, where the type checker alone watches over `frozen`.

        Watched over while the program runs, a value takes five to ten times as long to make.
        """
        return dataclass(unsafe_hash=frozen, **options)
