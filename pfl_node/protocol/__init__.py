"""The rules of an exchange between nodes, without I/O and with time passed in.

`mailbox` stores accepted offers until the policy takes them; `deadlines` computes how long a round waits for
each peer; `rate_limit` bounds what a peer may send; `published` is what peers may fetch; `compression` chooses the
numbers of a model that are sent. `guard/` checks the models of peers, `privacy/` bounds what answers reveal about
samples.
"""
