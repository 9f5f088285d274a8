"""Bad networks for real nodes: a fault proxy that needs no root, a lab of network namespaces, and measurements."""
