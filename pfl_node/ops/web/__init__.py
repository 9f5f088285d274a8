"""The page of a node: the web server, its JSON API, access control, and the static files."""
