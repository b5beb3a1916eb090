"""Tables for a person, whose cells are text and never markup."""

from rich.table import Table
from rich.text import Text

from timer_service.printable import printable


def add_row(table: Table, *cells: str) -> None:
    """Add a row that shows each text as it is, with what would steer a terminal escaped."""
    table.add_row(*(Text(printable(cell)) for cell in cells))
