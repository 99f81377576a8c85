"""AdamW by torch's fused kernel, called directly: torch.optim imports torch's compiler first, seconds in every run."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class AdamW:
    """The update of ``torch.optim.AdamW(fused=True)``, bit for bit, with states in the weights' dtype."""

    def __init__(
        self, weights: Sequence[torch.Tensor], lr: float, betas: tuple[float, float], weight_decay: float, eps: float = 1e-8
    ) -> None:
        self.weights = list(weights)
        self.lr, self.betas, self.weight_decay, self.eps = lr, betas, weight_decay, eps
        self.means = [torch.zeros_like(weight) for weight in self.weights]
        self.squares = [torch.zeros_like(weight) for weight in self.weights]
        self.steps = [torch.zeros((), dtype=torch.float32, device=weight.device) for weight in self.weights]

    @torch.no_grad()
    def step(self) -> None:
        """Updates every weight by its gradient and drops the gradients. Raises ``ValueError`` for a weight without one."""
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        if len(gradients) < len(self.weights):
            raise ValueError(f"{len(self.weights) - len(gradients)} of {len(self.weights)} weights have no gradient")
        torch._foreach_add_(self.steps, 1.0)
        torch._fused_adamw_(
            self.weights,
            gradients,
            self.means,
            self.squares,
            [],
            self.steps,
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )
        for weight in self.weights:
            weight.grad = None
