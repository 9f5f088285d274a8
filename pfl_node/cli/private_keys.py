"""Opens a CA for the verbs of `pfl-node ca`, and warns of private keys that other users can read."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_node.printable import printable

if TYPE_CHECKING:
    from pfl_node.security.ca import Authority


def open_authority(ca_dir: Path) -> "Authority":
    from pfl_node.security.ca import CA_KEY, Authority

    authority = Authority(ca_dir)
    warn_if_exposed(ca_dir / CA_KEY)
    return authority


def warn_if_exposed(key: Path) -> None:
    from pfl_node.security.key_permissions import exposed_key

    if exposed := exposed_key(key):
        print(printable(f"warning: {exposed}"), file=sys.stderr)
