"""What the service does, one function a file, with its ports as arguments."""
