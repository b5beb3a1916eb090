"""One module per screen: what it shows, and what can be done there."""
