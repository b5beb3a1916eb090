"""What the service does, one function per file, with its ports as arguments."""
