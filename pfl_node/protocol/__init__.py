"""The rules of an exchange, without I/O and with time passed in: mailbox, deadlines, rate limits, guard,
privacy."""
