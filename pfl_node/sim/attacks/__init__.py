"""Malicious nodes for experiments: a policy's steps are changed on their way to the driver."""
