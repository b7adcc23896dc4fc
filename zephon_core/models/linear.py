"""Linear layers on a CPU through oneDNN.

PyTorch's own float32 linear goes to MKL, which uses half of the vector width of processors that aren't Intel's; oneDNN's
kernels use all of it, and fuse the activation. They are what torch.compile uses; here they are called without a compiler.
Their result for a row doesn't depend on the other rows of the call, but for a call of one single row, which is therefore doubled.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["FastLinear", "onednn_runs", "swap_linears"]


def onednn_runs(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN's linear layers can be called in this arithmetic on this machine."""
    import torch

    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    operators = torch.ops.mkldnn
    if not hasattr(operators, "_linear_pointwise") or not hasattr(operators, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    return dtype == torch.float32


_ACTIVATIONS = {"none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class FastLinear:
    """y = activation(x Wᵀ + b) with oneDNN.

    weight: [out, in]; bias: [out] or None; activation: none, gelu, gelu_tanh or relu.
    pack: lay the weight out for the kernels once (faster by a twentieth, a private copy of it in memory); else at each call,
    from wherever the weight lies, which may be a mapped file that many processes share. The result is the same.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "none", pack: bool = True) -> None:
        import torch

        self._call: Any = torch.ops.mkldnn._linear_pointwise
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1024) if pack else weight
        self._bias = bias
        self._activation, self._algorithm = _ACTIVATIONS[activation]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [rows, out] for [rows, in]."""
        if len(rows) == 1:
            return self._run(rows.expand(2, -1).contiguous())[:1]
        return self._run(rows)

    def _run(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._call(rows, self._weight, self._bias, self._activation, [], self._algorithm)
        return result


def swap_linears(module: torch.nn.Module, *, pack: bool) -> int:
    """Replace every plain torch.nn.Linear under `module` by one that runs through oneDNN; return how many there were."""
    import torch

    class Swapped(torch.nn.Module):
        def __init__(self, linear: torch.nn.Linear) -> None:
            super().__init__()
            self.in_features, self.out_features = linear.in_features, linear.out_features
            self.weight, self.bias = linear.weight, linear.bias  # some models look at their layers' weights
            self._fast = FastLinear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach(), pack=pack)

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            flat = states.reshape(-1, self.in_features)
            return self._fast(flat).view(*states.shape[:-1], self.out_features)

    count = 0
    for name, child in list(module.named_children()):
        if type(child) is torch.nn.Linear:
            setattr(module, name, Swapped(child))
            count += 1
        else:
            count += swap_linears(child, pack=pack)
    return count
