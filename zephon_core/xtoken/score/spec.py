"""What decides a teacher's scores, and how a run makes them."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from zephon_core.models import Engine, ModelSpec
from zephon_core.models.plugins import is_plugin

__all__ = ["ScoreRun", "ScoreSpec"]


class ScoreSpec(BaseModel):
    """The teacher, and what decides the logprobs it gives."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelSpec = Field(title="Teacher", description="A causal language model.")
    max_batch: int = Field(
        default=128, title="Largest block (sequences)", description="At most so many sequences a block.", ge=1, le=1 << 16
    )
    token_budget: int = Field(default=8192, title="Token budget", description="At most so many tokens a block.", ge=1, le=1 << 24)

    @field_validator("model")
    @classmethod
    def _a_causal_model_of_transformers(cls, model: ModelSpec) -> ModelSpec:
        if is_plugin(model.path):
            raise ValueError(f"is {model.path}: plugins encode, and don't score; name a local folder")
        if model.engine is not Engine.TORCH:
            raise ValueError(f"has engine {model.engine.value}: only torch scores")
        return model


class ScoreRun(BaseModel):
    """How scoring runs. Nothing here changes what is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = Field(default=0, title="Workers", description="Processes on a CPU. 0: one a core.", ge=0, le=4096)
    device: str = Field(
        default="auto", title="Device", description="auto, cpu, cuda or cuda:N.", pattern=r"^(auto|cpu|cuda(:\d+)?)$"
    )
    gpu_memory_gb: float = Field(
        default=0.0, title="GPU memory (GB)", description="Never use more of a GPU's memory than this. 0: no limit.", ge=0
    )
    parts: int = Field(default=1, title="Parts", description="Split the scoring into so many independent parts.", ge=1, le=4096)
    part: int | None = Field(
        default=None, title="Part", description="Score only this part (0 is the first). Empty: all of them.", ge=0
    )

    @property
    def worker_count(self) -> int:
        """How many workers there may be: as set, else one a core that this process may run on."""
        return self.workers or len(os.sched_getaffinity(0))

    @model_validator(mode="after")
    def _part_is_one_of_parts(self) -> ScoreRun:
        if self.part is not None and self.part >= self.parts:
            raise ValueError(f"part is {self.part} of {self.parts} parts; the last one is {self.parts - 1}")
        return self
