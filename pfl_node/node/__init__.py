"""One node: the code that answers a policy's steps and serves its peers' calls, in a daemon and in a
simulation.

It imports asyncio and reaches everything else through `ports`. `lifecycle` starts and stops the node;
`driver` answers the steps and delegates to `push` (Send), `gather` (Gather), `peer_calls` (Fetch, Ask), `learn`
(Train, Score, Average) and `recorder` (Report); `host` serves the calls of peers; `async_compressor` compresses
what both send; `catchup` and `linger` handle nodes that are behind or done.
"""
