"""The parts of a real node that an operator sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl_node.node.lifecycle import PolicyNode

if TYPE_CHECKING:
    from pfl_node.membership.reachability import ReachabilityMonitor
    from pfl_node.membership.run_members import RunMembers
    from pfl_node.membership.service import Membership
    from pfl_node.ops.observer import NodeObserver
    from pfl_node.store.data_dir import DataDir
    from pfl_node.wire.client import PeerClient
    from pfl_node.wire.relay.rendezvous import Rendezvous
    from pfl_node.wire.tls import Tls


class ObservedNode(PolicyNode):
    """A node with a data directory, SWIM membership and gRPC. The daemon assembles it."""

    home: DataDir
    tls: Tls | None
    membership: Membership
    run_members: RunMembers
    monitor: ReachabilityMonitor
    client: PeerClient
    relay: Rendezvous | None  # the relay that this node offers
    node_observer: NodeObserver
