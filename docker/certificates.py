"""A CA for one swarm of containers, and a certificate for each of its places: `certificates.py [VERB OPTIONS...]`.

The CA is in /ca, the bootstrap's directory is /seed. Those of the nodes, pfl-data/node-1 and so on, PFL_NODES of
them, are in /var/lib/pfl, beside a certificate that may only look, for health checks. What is there stays. With a
verb it is `pfl-node ca VERB --ca-dir /ca`, and the list of who is revoked goes to every place afterwards.
"""

import os
import sys
from pathlib import Path

from pfl_node.cli import main as pfl_node
from pfl_node.errors import PflError
from pfl_node.security.ca import Authority
from pfl_node.store.atomic import write_atomic

CA, SEED, DATA = Path("/ca"), Path("/seed"), Path("/var/lib/pfl")
LOOKS = "operator"
DAYS = 825.0


def places(nodes: int) -> list[Path]:
    return [SEED, DATA / LOOKS, *(DATA / "pfl-data" / f"node-{i}" for i in range(1, nodes + 1))]


def provide(authority: Authority, wanted: list[Path]) -> int:
    """How many had none."""
    missing = [place for place in wanted if not (place / "cert.pem").exists()]
    for place in missing:
        name = "bootstrap" if place == SEED else place.name
        authority.issue_for(place, name=name, days=DAYS, operator=name == LOOKS)
    return len(missing)


def main(words: list[str]) -> int:
    wanted = places(int(os.environ.get("PFL_NODES") or 50))
    try:
        authority = Authority(CA) if (CA / "ca.key").exists() else Authority.create(CA, "pfl swarm CA", 3650)
        if not words:
            print(f"{provide(authority, wanted)} of {len(wanted)} certificates are new")
    except PflError as error:
        print(f"certificates: {error}", file=sys.stderr)
        return 1
    code = pfl_node(["ca", words[0], "--ca-dir", str(CA), *words[1:]]) if words else 0
    for place in wanted:
        if place.is_dir():
            write_atomic(place / "revoked", (CA / "revoked").read_bytes())  # follows no link of a container
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
