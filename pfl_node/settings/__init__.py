"""The tree of settings: definitions, sources and display.

`sections` has every key with its type, limits and default; `schema` describes the tree as dotted keys.
`load` merges TOML file, environment, flags and --set, each overriding the one before, and reports a mistake
in one line with its source. `toml` prints settings, and `redact` masks their secrets.
"""

from pfl_node.settings.sections import (
    AggregateSettings,
    EvalSettings,
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
    TaskSettings,
    TlsSettings,
    TrainSettings,
    WireSettings,
)

__all__ = [
    "AggregateSettings",
    "EvalSettings",
    "HttpSettings",
    "LogSettings",
    "MembershipSettings",
    "PolicySettings",
    "RoundSettings",
    "ServeSettings",
    "Settings",
    "SimSettings",
    "StartSettings",
    "StoreSettings",
    "TaskSettings",
    "TlsSettings",
    "TrainSettings",
    "WireSettings",
]
