"""The cells of an experiment as swarms of real nodes on this machine, which talk real gRPC."""
