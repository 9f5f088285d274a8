"""How a student learns from a teacher: the knobs and the step. Involves no other node."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pfl_node.model import Model
from pfl_node.policies.base import PolicyConfig
from pfl_node.steps import Distill, Fresh

STEP = ("loss", "temperature", "lr", "batch", "held", "best")


class Student(PolicyConfig):
    """The defaults are those of the code of Eriksson 2022, which settles what its text leaves open."""

    student: Literal["fresh", "mine"] = Field("fresh", description="the model that learns: a new one, or mine")
    student_model: str | None = Field(None, description="the student's network, by name; none: the local model's")
    # thesis' code: the student's raw outputs against the teacher's probabilities, and w1's rows unnormalised
    loss: Literal["mse", "mse_softmax", "ce", "kl"] = Field("mse", description="loss between student and teacher")
    temperature: float = Field(1.0, gt=0, description="temperature of kl")
    # paper: with w2 100 epochs of lr 1e-5; here: as with w0 and w1, because on few samples 1e-5 hardly learns
    student_epochs: int = Field(30, ge=1, description="epochs of the student")
    lr: float = Field(1e-3, gt=0, description="learning rate of the student")
    batch: int = Field(50, ge=1, description="batch size of the student")
    held: float = Field(0.2, ge=0, lt=1, description="share of the samples that the student does not train on")
    best: bool = Field(False, description="take the epoch that is best on those; false: the last one")

    @model_validator(mode="after")
    def _one_student(self) -> Student:
        if self.student_model and self.student == "mine":
            raise ValueError("student_model needs a new model: it cannot be combined with student = 'mine'")
        return self

    async def taught(self, model: Model, z: Model, t: int) -> Model:
        """theta_S <- theta_S - eta grad L_S(z_S, z_T), for each distillation step."""
        student = model if self.student == "mine" else await Fresh(seed=t + 1, common=True)
        knobs = {name: getattr(self, name) for name in STEP}
        learned = await Distill(student, z, epochs=self.student_epochs, **knobs)
        return model if learned is student else learned  # diverged: keep my own, not the untrained one
