"""How fast and how precise the timer service is, next to its limits and its peers; see bench/README.md."""
