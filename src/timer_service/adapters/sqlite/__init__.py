"""The timer store on a SQLite file."""
