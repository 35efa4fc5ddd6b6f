"""Traces as torch writes them, made by hand; times in microseconds."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def span(cat: str, name: str, begin: float, end: float, tid: int = 1, **args: Any) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": begin,
        "dur": end - begin,
        "args": args,
    }


def step(number: int, begin: float, end: float) -> Event:
    return span("user_annotation", f"ProfilerStep#{number}", begin, end)


def operator(name: str, begin: float, end: float, tid: int = 1, **args: Any) -> Event:
    return span("cpu_op", name, begin, end, tid, **args)


def data_wait(begin: float, end: float) -> Event:
    return span(
        "user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin, end
    )


def collective(begin: float, end: float, name: str = "gloo:all_reduce") -> Event:
    return span("user_annotation", name, begin, end, tid=7)


def kernel(name: str, begin: float, end: float, cat: str = "kernel") -> Event:
    return span(cat, name, begin, end, tid=20)


def product(begin: float, end: float, left: list[int], right: list[int], kind: str = "float") -> Event:
    return operator("aten::mm", begin, end, **{"Input Dims": [left, right], "Input type": [kind, kind]})
