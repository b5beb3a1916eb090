"""The rules of a timer, free of any technology."""
