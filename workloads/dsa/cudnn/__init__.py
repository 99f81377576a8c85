"""The backward by cuDNN frontend's Hopper kernel: as shipped, sliced, or with additions that do not round."""
