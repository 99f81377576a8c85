"""The model of a recipe: embedding, layers, head and loss, with seeded weights."""

from __future__ import annotations

import torch
from torch import nn

from .layers import BALANCE, Kernels, Layer
from .sizes import Size
from .spans import within

Tensor = torch.Tensor


class Model(nn.Module):
    """Tokens to loss. Parameters are bf16 once :func:`build` made them."""

    def __init__(self, size: Size, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.embedding = nn.Parameter(torch.empty(size.vocab, size.hidden))
        self.positions = nn.Parameter(torch.empty(size.length, size.hidden))
        self.layers = nn.ModuleList(Layer(size, mixer, kernels) for mixer in size.mixers)
        self.norm = nn.Parameter(torch.ones(size.hidden))
        self.head = nn.Parameter(torch.empty(size.vocab, size.hidden))

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(loss to descend, cross entropy alone) of ``ids`` and ``targets`` [B, L], both f32 scalars."""
        # the embedding's gradient is the last of the backward: it closes the range
        both: tuple[Tensor, Tensor] = within("model", lambda weight: self._losses(weight, ids, targets), self.embedding)
        return both

    def _losses(self, embedding: Tensor, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = within("embedding", lambda weight: self.kernels["embedding"](weight, ids), embedding)
        x = x + self.positions
        balances = []
        for number, layer in enumerate(self.layers):
            x, balance = within(f"layer{number}", layer, x)
            balances.append(balance)
        x = within("norm", lambda x: self.kernels["norm"](x, self.norm), x)
        logits = within("head", lambda x: self.kernels["linear"](x, self.head), x.view(-1, x.shape[-1]))
        loss = within("cross_entropy", lambda logits: self.kernels["cross_entropy"](logits, targets.flatten()), logits)
        return loss + BALANCE * torch.stack(balances).mean(), loss


def build(size: Size, kernels: Kernels, device: str, seed: int) -> Model:
    """The model in bf16 on ``device``: the same weights for the same ``seed``, size and kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    with torch.device(device):
        model = Model(size, kernels)
    with torch.no_grad():
        for weight in model.parameters():
            spread = 0.5 if weight.shape[-1] == size.taps else 0.02 * getattr(weight, "scale", 1.0)
            if weight.dim() > 1:
                weight.normal_(std=spread, generator=generator)
    return model.to(torch.bfloat16)
