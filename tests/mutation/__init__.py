"""Small mistakes, made one at a time, that some test has to notice."""
