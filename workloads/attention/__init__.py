"""Scaled dot-product attention: no champion yet."""
