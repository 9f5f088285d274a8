"""The web page of a node: the page itself, its JSON API, and metrics."""
