"""What each recipe is made of, at each size. No torch here: the command line reads it too."""

from __future__ import annotations

from dataclasses import dataclass, replace

RECIPES = ("dense", "moe", "hybrid")


@dataclass(frozen=True)
class Size:
    """The shapes of one recipe: ``mixers`` names each layer's ("attention" or "state_space"), ``feed_forward`` all layers'."""

    mixers: tuple[str, ...]
    feed_forward: str  # "mlp" or "moe"
    batch: int = 2
    length: int = 4096
    vocab: int = 32768
    hidden: int = 2048
    heads: int = 16
    mlp_width: int = 5632
    experts: int = 64
    topk: int = 8
    expert_width: int = 1024
    inner: int = 4096  # width of the state-space mixer
    inner_head: int = 64
    state: int = 128
    chunk: int = 128
    taps: int = 4

    @property
    def tokens(self) -> int:
        """Per step."""
        return self.batch * self.length

    def parameters(self) -> int:
        """How many numbers are trained."""
        mixers = sum(self._mixer_weights(kind)[1] for kind in self.mixers)
        feed_forwards = len(self.mixers) * self._feed_forward_weights()[1]
        norms = (2 * len(self.mixers) + 1) * self.hidden
        return mixers + feed_forwards + norms + (2 * self.vocab + self.length) * self.hidden

    def flops(self) -> int:
        """Of one step's matrix products: 2 for each weight a token meets, attention and scan beside it; backward twice as many.

        Left out: norms, activations, routing, optimizer. A causal product counts its lower half.
        """
        met = sum(self._mixer_weights(kind)[0] for kind in self.mixers) + len(self.mixers) * self._feed_forward_weights()[0]
        met += self.vocab * self.hidden
        per_token = 2 * met + sum(self._mixing_flops(kind) for kind in self.mixers)
        return 3 * self.tokens * per_token

    def _mixer_weights(self, kind: str) -> tuple[int, int]:
        """(weights that a token meets in products, all weights)."""
        if kind == "attention":
            return (4 * self.hidden**2,) * 2
        heads = self.inner // self.inner_head
        products = self.hidden * (2 * self.inner + 2 * self.state + heads) + self.inner * self.hidden
        return products, products + (self.inner + 2 * self.state) * self.taps + 3 * heads + self.inner

    def _feed_forward_weights(self) -> tuple[int, int]:
        if self.feed_forward == "mlp":
            return (3 * self.hidden * self.mlp_width,) * 2
        expert, router = 3 * self.hidden * self.expert_width, self.hidden * self.experts
        return self.topk * expert + router, self.experts * expert + router

    def _mixing_flops(self, kind: str) -> int:
        """Forward, for one token: scores and values over half the sequence; or the chunked scan's four products."""
        if kind == "attention":
            return 2 * 2 * self.hidden * self.length // 2
        within = 2 * self.chunk * (self.state + self.inner) // 2
        return within + 2 * 2 * self.state * self.inner


_H200 = {
    "dense": Size(mixers=("attention",) * 4, feed_forward="mlp"),
    "moe": Size(mixers=("attention",) * 4, feed_forward="moe"),
    "hybrid": Size(mixers=("state_space", "state_space", "attention", "state_space"), feed_forward="moe"),
}


def _tiny(size: Size, *mixers: str) -> Size:
    """The same parts, two layers, small enough for a CPU."""
    return replace(
        size,
        mixers=mixers,
        length=32,
        vocab=128,
        hidden=32,
        heads=2,
        mlp_width=64,
        experts=4,
        topk=2,
        expert_width=16,
        inner=64,
        inner_head=16,
        state=16,
        chunk=8,
    )


_TINY = {
    "dense": _tiny(_H200["dense"], "attention", "attention"),
    "moe": _tiny(_H200["moe"], "attention", "attention"),
    "hybrid": _tiny(_H200["hybrid"], "state_space", "attention"),
}
SIZES = {"h200": _H200, "tiny": _TINY}


def size_of(recipe: str, size: str) -> Size:
    """The shapes of ``recipe`` at ``size``. Raises ``ValueError`` for names that are none."""
    if size not in SIZES:
        raise ValueError(f"no size {size!r}: sizes are {', '.join(SIZES)}")
    if recipe not in RECIPES:
        raise ValueError(f"no recipe {recipe!r}: recipes are {', '.join(RECIPES)}")
    return SIZES[size][recipe]
