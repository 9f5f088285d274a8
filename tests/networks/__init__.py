"""Real nodes behind NAT, proxies and slow lines. `make test-netns` runs one file per scenario."""
