"""The command-line options of pfl-bootstrap and their validation."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from pfl_node import __version__
from pfl_node.address import parse_address
from pfl_node.daemon.advertise import check_addresses
from pfl_node.errors import ConfigError, nearest
from pfl_node.printable import check_word
from pfl_node.security.requirements import check_files, reason_for_tls
from pfl_node.security.tls_files import TlsFiles

ABOVE = "above"  # --enrol without an address
ABOUT = "A seed through which the nodes of a swarm find each other. It does not train and needs few resources."
EXAMPLE = """example:
  pfl-bootstrap --listen 127.0.0.1:7000
  pfl-node --peer-seed 127.0.0.1:7000        (once per node)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    listen: str
    advertise: str | None
    peer_seed: tuple[str, ...]
    name: str | None
    data_dir: Path | None
    relay: bool
    insecure: bool
    tls: bool
    ca: Path | None
    cert: Path | None
    key: Path | None
    allow: Path | None
    revoked: Path | None
    membership: Literal["auto", "udp", "grpc"]
    enrol: str | None
    log_format: str
    log_level: str

    @property
    def why_tls(self) -> str | None:
        """Why connections need TLS; None if they are plain."""
        addresses = [("listen", self.listen), ("advertise", self.advertise)]
        addresses += [("peer_seed", seed) for seed in self.peer_seed]
        return reason_for_tls(self.tls or None, self.insecure, addresses)

    @property
    def tls_files(self) -> TlsFiles:
        return TlsFiles.find(
            self.data_dir, ca=self.ca, cert=self.cert, key=self.key, allow=self.allow, revoked=self.revoked
        )


class Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def parse(arguments: list[str]) -> Options:
    """Raises ConfigError."""
    parser = _parser()
    found, unknown = parser.parse_known_args(arguments)
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
        raise ConfigError(f"unknown argument {unknown[0]!r}; {nearest(unknown[0].partition('=')[0], flags)}")
    options = Options(**{**vars(found), "peer_seed": tuple(found.peer_seed)})
    check(options)
    return options


def check(options: Options) -> None:
    check_word("name", options.name or "")
    if why := options.why_tls:
        try:
            files = options.tls_files
        except ConfigError as error:
            raise type(error)(f"{why}: {error}") from error
        check_files(files, why)
    check_addresses(options.listen, options.advertise, options.peer_seed)
    if options.enrol is not None and not (options.why_tls and options.data_dir):
        raise ConfigError("--enrol needs a --data-dir of `pfl-node ca init --bootstrap`, and on loopback --tls")
    if options.enrol is not None and options.enrol != ABOVE:
        parse_address(options.enrol, what="enrol", any_port=True)


def _parser() -> Parser:
    parser = Parser(
        "pfl-bootstrap",
        description=ABOUT,
        epilog=EXAMPLE,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:7000",
        help="address to bind (default %(default)s); port 0: any free port",
    )
    add("--advertise", metavar="HOST:PORT", help="address that others dial (default: the bound address)")
    add("--peer-seed", metavar="HOST:PORT", action="append", default=[], help="another member to join; repeatable")
    add("--name", metavar="NAME", help="name shown to humans")
    add("--data-dir", metavar="DIR", type=Path, help="directory for the id (default: a new id at every start)")
    add(
        "--enrol",
        metavar="HOST:PORT",
        nargs="?",
        const=ABOVE,
        help="let sites with a token of `pfl-node ca invite` join (default: the port above that of --listen)",
    )
    add("--relay", action="store_true", help="connect callers to nodes that cannot be dialled")
    add("--insecure", action="store_true", help="allow plain connections beyond loopback")
    add("--tls", action="store_true", help="use TLS on loopback too; it is always on elsewhere")
    _add_tls_files(parser)
    add(
        "--membership",
        choices=("auto", "udp", "grpc"),
        default="auto",
        help="transport of probes; auto: udp, or grpc with TLS",
    )
    add("--log-format", choices=("auto", "console", "json"), default="auto", help="default: %(default)s")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: %(default)s")
    add("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def _add_tls_files(parser: Parser) -> None:
    for flag, what in (
        ("--ca", "certificate of the swarm's CA (default: ca.pem in the data directory)"),
        ("--cert", "certificate of this seed (default: cert.pem there)"),
        ("--key", "key of this seed (default: key.pem there)"),
        ("--allow", "list of the only accepted ids (default: allow there, if any)"),
        ("--revoked", "list of refused ids (default: revoked there, if any)"),
    ):
        parser.add_argument(flag, metavar="FILE", type=Path, help=what)
