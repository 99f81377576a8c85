"""Causal depthwise convolutions: no champion yet."""
