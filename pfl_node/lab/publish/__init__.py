"""Results that are published: compact records of them, the page made from the records, and a check of a rerun."""
