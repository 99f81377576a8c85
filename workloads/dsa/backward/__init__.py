"""The backward of sparse-MLA attention: dq and dkv, whose rows collect from every query that chose them."""
