"""The page for operators and developers: routes, templates, and who may see what."""
