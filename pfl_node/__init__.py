"""pfl-node: personalized decentralized federated learning, peer to peer. Importing this costs nothing."""

__version__ = "0.1.0"
