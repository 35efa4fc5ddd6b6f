"""Tensors on different devices: find which parameter, attribute or batch entry is on the other one.

Runs in the rank that has just failed, on the frames of the exception; torch is loaded there already.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

_CALLS = ("_wrapped_call_impl", "_call_impl")
_WRAPPERS = ("torch.nn.parallel.", "torch._dynamo.")
_SHOWN = 3
Named = list[tuple[str, Any]]  # (name, tensor)


def explain(error: BaseException) -> str | None:
    """Return one sentence with its hint, or None where the frames do not show the cause."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    calls = [frame for frame in frames if _is_module_call(frame)]
    found = _in_model(calls[0], calls[-1]) if calls else None
    return found or _in_locals(frames)


def _is_module_call(frame: FrameType) -> bool:
    module = frame.f_locals.get("self")
    nn = sys.modules.get("torch.nn")
    return (
        nn is not None
        and frame.f_code.co_name in _CALLS
        and isinstance(module, nn.Module)
        and not type(module).__module__.startswith(_WRAPPERS)
    )


def _in_model(outer: FrameType, inner: FrameType) -> str | None:
    model = outer.f_locals["self"]
    owned = [*model.named_parameters(), *model.named_buffers()]
    home, others = _majority_and_others(owned)
    kind = type(model).__name__
    if others and others[0][1].device.type == home.type:
        return _between_parts(model, inner)
    if others:
        return (
            f"{_names('parameter or buffer', others, kind)} on {others[0][1].device}, the rest on {home}: "
            "dt.prepare(model), or model.to(device), moves all of them"
        )
    elsewhere = [(name, tensor) for name, tensor in _arguments(model, outer) if tensor.device != home]
    if owned and elsewhere:
        return (
            f"{_names('argument', elsewhere, f'{kind}.forward')} on {elsewhere[0][1].device}, its parameters "
            f"on {home}: batch = dt.to_device(batch, run.device) before the model is called"
        )
    kept = [(name, tensor) for name, tensor in _plain_attributes(model) if tensor.device != home]
    if owned and kept:
        return (
            f"{_names('attribute', kept, kind)} on {kept[0][1].device}, its parameters on {home}: "
            "self.register_buffer(name, tensor) makes it move with the model"
        )
    return None


def _between_parts(model: Any, inner: FrameType) -> str | None:
    """Explain it for a model that is spread over several GPUs: the input of one part was not moved."""
    part = inner.f_locals["self"]
    place = next((name for name, module in model.named_modules() if module is part), type(part).__name__)
    home, _ = _majority_and_others([*part.named_parameters(), *part.named_buffers()])
    elsewhere = [(name, tensor) for name, tensor in _arguments(part, inner) if tensor.device != home]
    if home is None or not elsewhere:
        return None
    return (
        f"the input of {place!r} ({type(part).__name__}) is on {elsewhere[0][1].device}, its parameters on "
        f"{home}: x = x.to({str(home)!r}) in front of it"
    )


def _in_locals(frames: list[FrameType]) -> str | None:
    """Explain it for tensors of the user's own code, for instance the output and the target of a loss."""
    for frame in reversed(frames):
        file = frame.f_code.co_filename
        if "site-packages" in file or file.startswith((sys.base_prefix, "<")):
            continue
        variables = {name: value for name, value in frame.f_locals.items() if not name.startswith("__")}
        found = [item for name, value in variables.items() for item in _tensors(name, value)]
        home, others = _majority_and_others(found)
        if others:
            rest = [(name, tensor) for name, tensor in found if tensor.device == home]
            return (
                f"in {frame.f_code.co_name}, {_names('', others)} on {others[0][1].device}, "
                f"{_names('', rest)} on {home}: dt.to_device(value, run.device) moves a whole batch"
            )
    return None


def _arguments(module: Any, call: FrameType) -> Named:
    args, kwargs = call.f_locals.get("args", ()), call.f_locals.get("kwargs", {})
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"{place}": value for place, value in enumerate(args)} | dict(kwargs)
    return [item for name, value in bound.items() for item in _tensors(name, value)]


def _plain_attributes(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield tensors that a module keeps outside of its parameters and buffers: `.to` does not move them."""
    for place, module in model.named_modules():
        for name, value in vars(module).items():
            if not name.startswith("_"):
                yield from _tensors(f"{place}.{name}" if place else name, value)


def _tensors(name: str, value: Any) -> Named:
    """Return every tensor in a value, with its path: `batch['image'][0]`."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.nn.Module):
        return []
    from torch.utils import _pytree

    leaves, _ = _pytree.tree_flatten_with_path(value)
    return [(name + _pytree.keystr(path), leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def _majority_and_others(named: Named) -> tuple[Any, Named]:
    """Return the device of most tensors, and the tensors of one other device; GPUs win a tie."""
    groups: dict[Any, Named] = {}
    for name, tensor in named:
        groups.setdefault(tensor.device, []).append((name, tensor))
    ordered = sorted(groups, key=lambda device: (-len(groups[device]), device.type != "cuda"))
    return (ordered[0] if ordered else None), (groups[ordered[-1]] if len(ordered) > 1 else [])


def _names(what: str, named: Named, owner: str = "") -> str:
    """`parameter 'a.weight' of Net is`, `'x', 'y', 'z' and 4 more are`."""
    shown = ", ".join(repr(name) for name, _ in named[:_SHOWN])
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    of = f" of {owner}" if owner else ""
    return f"{what} {shown}{more}{of} {'is' if len(named) == 1 else 'are'}".strip()
