"""What a backward dispatches beside our kernels."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Dispatched(TorchDispatchMode):
    """Names of the aten operations that run inside the block."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def fills_of_backward(output, wanted):
    """The fills that the gradient of ``output`` with respect to ``wanted`` launches."""
    cotangent = torch.ones_like(output)
    with Dispatched() as dispatched:
        torch.autograd.grad(output, wanted, cotangent)
    return [name for name in dispatched.names if name in ("zeros", "zeros_like", "new_zeros", "zero_", "fill_", "full")]
