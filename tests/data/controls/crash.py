"""Ops whose deterministic implementation ends badly, and a sound one beside them."""

from __future__ import annotations

import os
import time

from perfgate import Op


def sound(name):
    op = Op(name)
    op.cases(smoke=dict(rows=64))
    op.inputs(inputs)
    op.reference(double)
    op.default("torch.double")(double)
    return op


def inputs(case, device, generator):
    import torch

    return {"rows": torch.randn(case.rows, device=device, generator=generator)}


def double(x):
    return x["rows"] * 2


def killed(x):
    os.kill(os.getpid(), 9)


def raised(x):
    raise RuntimeError("no kernel for this shape")


def hung(x):
    time.sleep(600)


def wrong(x):
    return x["rows"] * 2.5


def of_another_shape(x):
    return (x["rows"] * 2)[:-1]


def nothing(x):
    return None


OPS = {}
for _name, _function in {
    "killed": killed, "raised": raised, "hung": hung, "wrong": wrong, "shape": of_another_shape, "nothing": nothing,
    "sound": double,
}.items():  # fmt: skip
    OPS[_name] = sound(f"crash/{_name}")
    OPS[_name].champion(_name)(_function)
globals().update({f"op_{name}": op for name, op in OPS.items()})
