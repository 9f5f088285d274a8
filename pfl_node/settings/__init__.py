"""The tree of settings: definitions, sources and display.

`sections` and the other modules of sections have every key with its type, limits and default; `schema` describes
the tree as dotted keys. `load` merges TOML file, environment, flags and --set, each overriding the one before, and
reports a mistake in one line with its source. `toml` prints settings, and `redact` masks their secrets.
"""

from pfl_node.settings.learning_sections import DataSettings, EvalSettings, TaskSettings, TrainSettings
from pfl_node.settings.network_section import NetworkSettings, RelaySettings
from pfl_node.settings.sections import (
    AggregateSettings,
    HttpSettings,
    LogSettings,
    MembershipSettings,
    PolicySettings,
    RoundSettings,
    ServeSettings,
    Settings,
    SimSettings,
    StartSettings,
    StoreSettings,
    TlsSettings,
    WireSettings,
)
from pfl_node.settings.track_section import TrackSettings

__all__ = [
    "AggregateSettings",
    "DataSettings",
    "EvalSettings",
    "HttpSettings",
    "LogSettings",
    "MembershipSettings",
    "NetworkSettings",
    "PolicySettings",
    "RelaySettings",
    "RoundSettings",
    "ServeSettings",
    "Settings",
    "SimSettings",
    "StartSettings",
    "StoreSettings",
    "TaskSettings",
    "TlsSettings",
    "TrackSettings",
    "TrainSettings",
    "WireSettings",
]
