"""Group membership: SWIM with Lifeguard's extensions, without gRPC, numpy or torch.

`swim` is the sans-io state machine, made of `view` (beliefs about members), `prober` (failure detection),
`admission` (unique ids), `record_check` (signed records), `timers` and `suspendable_clock`. `service` runs it over
`udp` or injected calls, with `packet_codec` for the messages, and is the interface for the rest of a node.
"""
