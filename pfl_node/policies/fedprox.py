"""`fedprox`: federated averaging with a proximal term that keeps clients near the common model."""

from __future__ import annotations

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.fedavg import FedAvg
from pfl_node.steps import Train


class FedProx(FedAvg):
    """FedProx (Li et al. 2020), as in Eriksson 2022, equation 2.7."""

    class Config(FedAvg.Config):
        mu: float = Field(0.1, ge=0, description="weight of the proximal term; 0: fedavg")

    # paper: Eriksson's code takes the anchor once, at the start, which makes it fedavg; here: w_t, because 2.7 and
    # the code of Li et al. say so
    async def client_update(self, w: Model) -> Model:
        return await Train(w, prox=self.cfg.mu)  # min L_k(w) + mu / 2 ||w - w_t||^2
