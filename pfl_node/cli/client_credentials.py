"""The options with which a verb presents a certificate to a node with TLS. `takes_credentials` adds them."""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.cli.options import ExitCode, keyword, with_signature
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.security.credentials import Credentials


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The files given on the command line; none: connect without TLS."""

    data_dir: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def by_directory(self) -> bool:
        """Whether no files were named: then the directory may be that of a node without TLS."""
        return not (self.ca or self.cert or self.key)

    def load(self) -> "Credentials | None":
        from pfl_node.security.credentials import load_credentials
        from pfl_node.security.requirements import prepare
        from pfl_node.security.tls_files import KEY, TlsFiles, exists

        if self.by_directory and not (self.data_dir and exists(self.data_dir / KEY)):
            return None
        if self.data_dir is None and not (self.ca and self.cert and self.key):
            raise ConfigError("give --ca, --cert and --key together, or --data-dir DIR, which holds all three")
        files = TlsFiles.find(self.data_dir, ca=self.ca, cert=self.cert, key=self.key)
        prepare(files)
        return load_credentials(files)


NONE = ClientCredentials()
CREDENTIALS: ContextVar[ClientCredentials] = ContextVar("credentials", default=NONE)


def _option(name: str, metavar: str, variable: str, about: str) -> inspect.Parameter:
    spelling, about = f"--{name.replace('_', '-')}", f"With TLS: {about}"
    option = typer.Option(spelling, metavar=metavar, envvar=variable, show_envvar=False, help=about)
    return keyword(name, Annotated[Path | None, option])


OPTIONS = (
    _option(
        "data_dir", "DIR", "PFL_DATA_DIR", "the directory of the node or operator whose certificate to present."
    ),
    _option("ca", "FILE", "PFL_TLS__CA", "the CA's certificate, if it is not in that directory."),
    _option("cert", "FILE", "PFL_TLS__CERT", "the certificate to present, if it is not in that directory."),
    _option("key", "FILE", "PFL_TLS__KEY", "its key, if it is not in that directory."),
)


def takes_credentials(verb: Callable[..., ExitCode]) -> Callable[..., ExitCode]:
    """Add these options to a verb; `connected` reads their values."""

    def run(**options: Any) -> ExitCode:
        CREDENTIALS.set(ClientCredentials(**{option.name: options.pop(option.name) for option in OPTIONS}))
        return verb(**options)

    return with_signature(run, [*inspect.signature(verb).parameters.values(), *OPTIONS], like=verb)
