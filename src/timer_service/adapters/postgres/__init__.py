"""The timer store on PostgreSQL, shared by several instances."""
