"""Run every benchmark and write docs/benchmarks.md: one table with machine, versions, date, aims and misses.

    python benchmarks/table.py [--rounds 20] [--only launch_to_first_step loop_overhead] [--records DIR]

Each script's rows are kept in a file of their own below `--records` (default benchmarks/records, which is
kept with the code), so that one benchmark can be measured again and the table made from all of them. Measure
on a machine on which nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import peers
from measurements import Row

_FOLDER = Path(__file__).resolve().parent
_NOT_SCRIPTS = {"checkpoint_state", "forked_case", "measurements", "peers", "table", "training_loops"}
_PAGE = _FOLDER.parent / "docs" / "benchmarks.md"
_HEAD = """# Benchmarks

Written by `make bench` (`benchmarks/table.py`); no line of it is typed. Medians and 95 % intervals of the
median, by order statistics, of interleaved rounds. A ratio is of values of the same round. A missed aim
stays in the table. **Nothing here was measured on a GPU or over a network.**
"""


def scripts() -> list[str]:
    """The names of the benchmarks."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _NOT_SCRIPTS)


def measure(names: Sequence[str], rounds: int | None, records: Path) -> bool:
    """Run the benchmarks one after the other; whether all ended well."""
    good = True
    for name in names:
        record = records / f"{name}.jsonl"
        record.unlink(missing_ok=True)
        words = [sys.executable, str(_FOLDER / f"{name}.py"), "--record", str(record)]
        words += [] if rounds is None else ["--rounds", str(rounds)]
        print(f"== {name}", flush=True)
        load, began = os.getloadavg()[0], time.time()
        code = subprocess.run(words, check=False).returncode
        facts = {
            "load_before": load,
            "seconds": round(time.time() - began, 1),
            "exit_code": code,
            **machine(),
        }
        (records / f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")
        good = good and code == 0
    return good


def machine() -> dict[str, str]:
    """Where and with what a benchmark ran."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "?",
    )
    memory_kib = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "safetensors")} | peers.versions()
    memory = f"{memory_kib / 2**20:.0f} GiB"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores of {model}, {memory}, Linux {platform.release()}",
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def page(records: Path) -> str:
    """The page, from all records."""
    parts = [_HEAD]
    for name in scripts():
        record, facts = records / f"{name}.jsonl", records / f"{name}.json"
        if not facts.exists() or not record.exists():
            parts.append(f"\n## {name}\n\nNot run.\n")
            continue
        parts.append("\n".join(_section(name, record, json.loads(facts.read_text(encoding="utf-8")))))
    return "".join(parts)


def _section(name: str, record: Path, facts: dict[str, object]) -> Iterator[str]:
    yield f"\n## {name}\n"
    where = f"{facts['date']}, {facts['machine']}, Python {facts['python']}"
    load = facts["load_before"]
    yield f"{where}; load before {'not recorded' if load is None else f'{load:.1f}'}."
    yield f"{facts['versions']}.\n"
    yield "| measured | case | median [95 % interval] | n | ratio [95 % interval] | aim | |"
    yield "|---|---|---|---|---|---|---|"
    for line in _lines(str(record)):
        yield table_line(Row(**json.loads(line)))
    yield ""


def table_line(row: Row) -> str:
    """One row as Markdown."""
    ratio = ""
    if row.ratio is not None:
        ratio = f"{row.ratio:.3f} [{row.ratio_low:.3f} .. {row.ratio_high:.3f}] x {row.base}"
    verdict = {None: "", True: "met", False: "**missed**"}[row.met]
    value = f"{row.median:.4g} [{row.low:.4g} .. {row.high:.4g}] {row.unit}"
    return f"| {row.measured} | {row.case} | {value} | {row.rounds} | {ratio} | {row.aim} | {verdict} |"


def main() -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, help="instead of each script's own number")
    parser.add_argument("--only", nargs="*", default=scripts(), choices=scripts(), metavar="NAME")
    parser.add_argument("--records", type=Path, default=_FOLDER / "records")
    options = parser.parse_args()
    options.records.mkdir(parents=True, exist_ok=True)
    good = measure(options.only, options.rounds, options.records)
    _PAGE.write_text(page(options.records), encoding="utf-8")
    print(_PAGE)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
