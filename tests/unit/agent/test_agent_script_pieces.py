"""A script in two pieces does what the whole does."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from dist_train.agent.workers.script_pieces import script_pieces


def run(text: str) -> tuple[int, dict[str, Any]]:
    """How many pieces a script has, and the globals that they leave."""
    names: dict[str, Any] = {"__name__": "__main__"}
    pieces = script_pieces(textwrap.dedent(text).encode(), "train.py")
    for piece in pieces:
        exec(piece, names)
    return len(pieces), names


def test_the_rest_begins_after_the_last_import_of_the_head() -> None:
    number, names = run(
        '''
        """What it does."""
        from __future__ import annotations
        import os, sys
        sys.path.insert(0, os.getcwd())
        try:
            import json
        except ImportError:
            json = None
        SEEN = "os" in dir()
        def size(x: Unknown) -> None: ...
        import math
        value: Unknown = math.pi
        '''
    )
    assert number == 2
    assert names["__doc__"] == "What it does."
    assert names["size"].__annotations__ == {"x": "Unknown", "return": "None"}
    assert names["__annotations__"] == {"value": "Unknown"}, "the __future__ import holds for the rest"


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        "import os\n",
        "main = print\nmain()\nimport os\n",
        "for _ in range(2):\n    pass\nimport os\nx = 2\n",
        "import os\n'no docstring'\nx = 2\n",
        "",
    ],
)
def test_where_there_is_no_such_place_it_stays_whole(text: str) -> None:
    number, names = run(text)
    assert number == 1
    assert names.get("__doc__") is None


def test_a_frames_line_is_the_scripts() -> None:
    _, rest = script_pieces(b"import os\n\n\nraise KeyError\n", "train.py")
    with pytest.raises(KeyError) as raised:
        exec(rest, {})
    assert raised.traceback[-1].lineno == 3  # counted from 0
    assert rest.co_filename == "train.py"


@pytest.mark.parametrize("text", ["import os\nreturn 1\n", "import os\nx = (\n", "import os\nx = '\\0'\0\n"])
def test_what_cannot_be_compiled_is_refused_before_its_first_import(text: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        script_pieces(text.encode(), "train.py")
