"""TensorBoard event files, read record by record with the tensorboard package, so that a truncated one is told."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfgate.determinism.metrics.values import Scalar, Stream
from perfgate.errors import UsageError


def read_events(path: Path, stream: Stream) -> None:
    """Adds the scalars of one event file to ``stream``, float32 and tensor ones alike, in the type they were written.

    Raises :class:`UsageError` for a file that is empty, truncated or corrupt (tensorboard itself stops there silently), and
    where the tensorboard package is missing.
    """
    for event in _events(path):
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            scalar = Scalar("float32", struct.pack("<f", value.simple_value)) if kind == "simple_value" else None
            if kind == "tensor":
                scalar = _of_tensor(value.tensor)
            if scalar is None:
                stream.not_scalars.add(value.tag)
            else:
                stream.add(value.tag, event.step, scalar)


def _of_tensor(tensor: Any) -> Scalar | None:
    from tensorboard.util import tensor_util

    array = tensor_util.make_ndarray(tensor)
    if array.size != 1 or not Scalar.known(array.dtype.name):
        return None
    return Scalar(array.dtype.name, array.astype(array.dtype.newbyteorder("<")).tobytes())


def _events(path: Path) -> Iterator[Any]:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.tensorflow_stub import errors
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    except ImportError as error:
        raise UsageError(
            f"{path.name} is a TensorBoard file, and the tensorboard package is missing", "pip install tensorboard"
        ) from error
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if path.stat().st_size == 0:
        raise UsageError(f"{path} is empty", "was the run killed before its writer flushed?")
    reader, number = PyRecordReader_New(str(path)), 0
    while True:
        try:
            reader.GetNext()
            event = Event.FromString(reader.record())
        except errors.OutOfRangeError:
            return
        except (errors.DataLossError, DecodeError) as error:
            why = str(getattr(error, "message", error)).removeprefix(str(path)).strip()
            text = f"{path} is truncated or corrupt after {number} records: {why}"
            raise UsageError(text, "compare a complete copy: flush and close the writer first") from error
        number += 1
        yield event
