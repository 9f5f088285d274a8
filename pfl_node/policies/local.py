"""`local`: no communication. The baseline "Local" of Onoszko et al. 2021 (PENS), section 5.3."""

from __future__ import annotations

from pfl_node.policies.early_stopping import EarlyStopping
from pfl_node.steps import Report, Train


class Local(EarlyStopping):
    """Local: no communication (Onoszko et al. 2021, section 5.3)."""

    solitary = True
    takes = ()

    # paper: the thesis' code does one epoch a round here; here: as many as the other policies, because the text
    # has E for all
    async def main(self) -> None:
        for t in self.remaining():
            self.model = await Train(self.model)
            await self.check_stop()
            await Report(t, self.model)
