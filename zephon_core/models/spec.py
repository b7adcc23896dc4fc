"""Frozen transformers: what one is (`ModelSpec`), and how one is loaded and run."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from zephon_core.models.plugins import is_plugin

__all__ = ["Engine", "ModelSpec", "Precision", "Quantization"]


class Precision(StrEnum):
    """The floating-point type that the frozen model computes in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Quantization(StrEnum):
    """How the frozen model's weights are held (bitsandbytes)."""

    NONE = "none"
    NF4 = "4bit"
    INT8 = "8bit"


class Engine(StrEnum):
    """What runs the forward pass."""

    TORCH = "torch"
    OPENVINO = "openvino"


class ModelSpec(BaseModel):
    """A frozen transformer and the arithmetic it runs in. Equal specs and equal files give equal features."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(
        title="Model", description="A local Hugging Face folder (safetensors), or package.module:factory.", min_length=1
    )
    dtype: Precision = Field(default=Precision.FLOAT32, title="Precision", description="Floating-point type of the computation.")
    quantization: Quantization = Field(
        default=Quantization.NONE, title="Quantisation", description="Hold the weights in 4 bits (NF4) or 8 bits."
    )
    backbone: str = Field(
        default="inner",
        title="Backbone",
        description="inner: the transformer without its LM head. outer: the whole causal LM, for banks begun that way.",
        pattern="^(inner|outer)$",
    )
    engine: Engine = Field(default=Engine.TORCH, title="Engine", description="What runs the forward pass.")
    remote_code: str = Field(
        default="",
        title="Remote code",
        description="Name of the one model class whose own Python code may run from the model's folder. Empty: none.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("dtype", "quantization", "backbone", "engine", "remote_code")
    @classmethod
    def _a_plugin_decides_by_itself(cls, value: Any, info: ValidationInfo) -> Any:
        path = info.data.get("path", "")
        if is_plugin(path) and value != cls.model_fields[str(info.field_name)].default:
            raise ValueError(f"is {value}, which does nothing: {path} loads and runs its model by itself; leave it out")
        return value
