"""One node as a process: pre-flight checks, TLS set-up, the advertised address, signals."""
