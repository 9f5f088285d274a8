"""The page of a node: what it and its swarm are doing, live in a browser, as JSON and as metrics."""
