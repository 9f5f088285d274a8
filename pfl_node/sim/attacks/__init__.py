"""Malicious nodes for the lab: any policy's node can be made one in a simulation or a swarm, never in a daemon"""
