"""What the core needs from the outside world, as protocols."""
