"""pfl-node: peer-to-peer personalized federated learning. Importing the package loads no dependency."""

__version__ = "0.1.0"
