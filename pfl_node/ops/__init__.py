"""What an operator sees of a running node: events, status, page, metrics, logs, bug report."""
