"""The base class of a part of the tree of settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of the tree; unknown keys are errors. `make docs` reads the text below each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
