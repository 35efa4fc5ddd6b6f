"""A script in two pieces, its imports and the rest, so that the time of its imports can be told.

Run one after the other they do what the whole does: the same statements with the same lines, in one module.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Sequence
from functools import reduce
from types import CodeType

_FUTURES = reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
# What may stand between imports; a loop or a call of a function such as main() may not.
_AMONG_IMPORTS = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef)
_BLOCKS = (ast.Try, ast.If, ast.With)


def script_pieces(source: bytes, path: str) -> list[CodeType]:
    """Compile a script: [its imports, the rest], or [the whole] where there is nothing to tell apart.

    Raises:
        SyntaxError: as compile().
    """
    try:
        tree = ast.parse(source, path)
        at = _end_of_imports(tree.body)
        # The first string of a piece would become the module's docstring.
        if at and at < len(tree.body) and not _is_string(tree.body[at]):
            first = _compiled(tree.body[:at], path, 0)
            return [first, _compiled(tree.body[at:], path, first.co_flags & _FUTURES)]
    except Exception:
        pass  # what is wrong with the text is said below, as for any script
    return [compile(source, path, "exec", dont_inherit=True)]


def _compiled(statements: list[ast.stmt], path: str, flags: int) -> CodeType:
    piece = ast.Module(body=statements, type_ignores=[])
    code: CodeType = compile(piece, path, "exec", flags=flags, dont_inherit=True)
    return code


def _end_of_imports(statements: Sequence[ast.stmt]) -> int:
    """How many statements there are up to the last import of the script's head."""
    end = 0
    for place, statement in enumerate(statements):
        if isinstance(statement, (ast.Import, ast.ImportFrom)) or _imports_in_a_block(statement):
            end = place + 1
        elif not (isinstance(statement, _AMONG_IMPORTS) or _is_string(statement) or _is_setting(statement)):
            break
    return end


def _imports_in_a_block(statement: ast.stmt) -> bool:
    """Whether it is `try: import …`, `if …: import …`, and nothing but imports and settings."""
    if not isinstance(statement, _BLOCKS):
        return False
    inner = statement.body
    return all(isinstance(one, (ast.Import, ast.ImportFrom)) for one in inner)


def _is_setting(statement: ast.stmt) -> bool:
    """Whether it is a call such as `sys.path.insert(0, folder)`."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return isinstance(statement.value.func, ast.Attribute)


def _is_string(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
