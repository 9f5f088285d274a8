"""Settings: the tree of sections, where values come from, how they are shown."""

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
    "StartSettings",
    "StoreSettings",
    "TaskSettings",
    "TlsSettings",
    "TrainSettings",
    "WireSettings",
]
