"""The options with which a verb presents a certificate to a node with TLS. `takes_credentials` adds them."""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.cli.options import dressed
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.security.credentials import Credentials


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """What was given; nothing: connections are plain."""

    data_dir: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def by_directory(self) -> bool:
        """A directory may be that of a plain node, too."""
        return not (self.ca or self.cert or self.key)

    def credentials(self) -> "Credentials | None":
        """None: nothing to show."""
        from pfl_node.security.credentials import load_credentials
        from pfl_node.security.requirements import prepare
        from pfl_node.security.tls_files import KEY, TlsFiles

        if self.by_directory and not (self.data_dir and (self.data_dir / KEY).exists()):
            return None
        if self.data_dir is None and not (self.ca and self.cert and self.key):
            raise ConfigError("--ca, --cert and --key belong together; or say --data-dir DIR, which has all three")
        files = TlsFiles.find(self.data_dir, ca=self.ca, cert=self.cert, key=self.key)
        prepare(files)
        return load_credentials(files)


NOTHING = ClientCredentials()
SHOWN: ContextVar[ClientCredentials] = ContextVar("shown", default=NOTHING)
OPTIONS = {
    "data_dir": (
        "--data-dir",
        "DIR",
        "PFL_DATA_DIR",
        "With TLS: a node's or operator's directory, to show who asks.",
    ),
    "ca": ("--ca", "FILE", "PFL_TLS__CA", "With TLS: the CA's certificate, where it is not in that directory."),
    "cert": ("--cert", "FILE", "PFL_TLS__CERT", "With TLS: the asker's certificate, likewise."),
    "key": ("--key", "FILE", "PFL_TLS__KEY", "With TLS: the asker's key, likewise."),
}


def takes_credentials(verb: Callable[..., int]) -> Callable[..., int]:
    """The verb with these flags; `connected` finds what they say."""

    def run(**options: Any) -> int:
        SHOWN.set(ClientCredentials(**{name: options.pop(name) for name in OPTIONS}))
        return verb(**options)

    own = inspect.signature(verb).parameters.values()
    return dressed(run, [*own, *(_parameter(name) for name in OPTIONS)], like=verb)


def _parameter(name: str) -> inspect.Parameter:
    spelling, metavar, variable, about = OPTIONS[name]
    option = typer.Option(spelling, metavar=metavar, envvar=variable, show_envvar=False, help=about)
    kind = Annotated[Path | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
