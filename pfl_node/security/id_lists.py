"""Lists of ids: one at the start of each line, what follows it is for people; `#` begins a comment."""

from __future__ import annotations

from pathlib import Path

from pfl_node.errors import ConfigError
from pfl_node.security.certificate import ID, ID_BYTES
from pfl_node.security.tls_files import read
from pfl_node.types import PeerId


def parse_ids(text: str, where: str) -> frozenset[PeerId]:
    """Raises ConfigError that names the line."""
    found = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if not ID.fullmatch(words[0].lower()):
            raise ConfigError(
                f"{where}, line {number}: {words[0]!r} is no id: {2 * ID_BYTES} hexadecimal digits, "
                "as `pfl-node identity` shows them"
            )
        found.add(PeerId(words[0].lower()))
    return frozenset(found)


def read_ids(path: Path, what: str) -> frozenset[PeerId]:
    return parse_ids(read(path, what).decode("utf-8", "replace"), str(path))
