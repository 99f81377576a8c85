"""flash-attn-4's SM90 attention: as shipped, in its ordered mode, and hooked so that what it adds is exact."""
