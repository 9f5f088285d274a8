"""Images, Compose files and Kubernetes manifests: what can be told by reading them, and with an engine."""
