"""The loop of a worker process: receive the model once, then compute batches in their order."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from dist_train.checkpoint.format.tensor_bytes import host
from dist_train.distributed.pytree import map_tensors
from dist_train.distributed.transfer import to_device
from dist_train.inference.serialization import pack, unpack

Forward = Callable[[nn.Module, Any], Any]


def serve(connection: Connection, device: str, threads: int) -> None:
    """Answer until the other end is closed, as it also is when the parent dies.

    First comes (model, forward or None), answered by ("ready",) or ("broken", traceback); then
    (number, batch), each answered by ("done", number, result) or ("failed", number, what, traceback).

    Args:
        device: where the model computes.
        threads: CPU threads of this process.
    """
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # Always reading: the parent may send a batch while we are sending a result.
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    try:
        model, forward = _open(inbox.get(), device, threads)
    except Exception:
        connection.send_bytes(pack(("broken", traceback.format_exc())))
        return
    connection.send_bytes(pack(("ready",)))
    while True:
        connection.send_bytes(_answer(inbox.get(), model, forward, device))


def _receive(connection: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _open(payload: bytes, device: str, threads: int) -> tuple[nn.Module, Forward]:
    torch.set_num_threads(threads)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    model, forward = unpack(payload)
    return model.to(device).eval(), forward or _call


def _call(model: nn.Module, batch: Any) -> Any:
    return model(batch)


def _answer(payload: bytes, model: nn.Module, forward: Forward, device: str) -> memoryview:
    number: int = -1
    try:
        number, batch = unpack(payload)
        with torch.inference_mode():
            result = map_tensors(forward(model, to_device(batch, device)), host)
        return pack(("done", number, result))
    except Exception as error:
        return pack(("failed", number, f"{type(error).__name__}: {error}", traceback.format_exc()))
