"""Read YAML strictly: duplicate keys, unquoted times and octal numbers are refused, with their line.

The loader is a subclass with its own table of plain scalars; yaml.SafeLoader itself is not touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from dist_train.config.problems import KeyPath, Problem, dotted
from dist_train.errors import ConfigError

# Far above any config; nested anchors ("billion laughs") exceed it at once.
_MAX_VALUES = 100_000
_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset(_TAG + name for name in ("null", "bool", "int", "float", "str"))
_TIME = "!unquoted-time"
_OCTAL = "!leading-zero"


class StrictLoader(yaml.SafeLoader):
    """SafeLoader with `1e-4` as a number, dates as text, and base 60 and octal marked for refusal."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


# Order matters: for a first character the first pattern that matches wins.
_PLAIN: tuple[tuple[str, str, list[str]], ...] = (
    (_TAG + "null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (
        _TAG + "bool",
        r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
        list("yYnNtTfFoO"),
    ),
    (
        _TIME,
        r"[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*",
        list("-+0123456789"),
    ),
    (_OCTAL, r"[-+]?0[0-7_]+", list("-+0")),
    (
        _TAG + "int",
        r"[-+]?0b[01_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+",
        list("-+0123456789"),
    ),
    (
        _TAG + "float",
        r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    (_TAG + "merge", r"<<", ["<"]),
)
for _tag, _pattern, _first in _PLAIN:
    StrictLoader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass
class Tree:
    """A parsed document.

    Args:
        data: None for an empty document; else JSON-like values with text keys only.
        lines: line number (from 1) of every key and list item.
        problems: what is wrong although it could be parsed.
    """

    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_yaml(text: str, source: str) -> Tree:
    """Parse one document; `source` names it in messages.

    Raises:
        ConfigError: not YAML at all (file, line, column and the line itself), or nested too deep.
    """
    try:
        loader = StrictLoader(text)
        node = loader.get_single_node()
        return Tree() if node is None else _Builder(loader, source).tree(node)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, source) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"{source}:{line}: the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise ConfigError(message, hint="remove it, or save the file as UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply to be a config") from None


def _syntax_error(error: yaml.MarkedYAMLError, text: str, source: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "not YAML"
    if mark is None:
        return ConfigError(f"{source}: {problem}")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    pointer = f"\n    {line}\n    {' ' * mark.column}^" if line else ""
    hint = None
    if "\\t" in problem:
        hint = "indent with spaces: YAML allows no tabs there"
    elif "mapping values are not allowed" in problem:
        hint = "quote a value that holds `: `, and look at the indentation of this line and the one above"
    elif "single document" in str(error.context):
        hint = "a config is one document: remove the second `---`"
    return ConfigError(f"{source}:{mark.line + 1}:{mark.column + 1}: {problem}{pointer}", hint=hint)


class _Builder:
    """Convert yaml's nodes to values, collecting lines and problems."""

    def __init__(self, loader: StrictLoader, source: str) -> None:
        self.loader = loader
        self.source = source
        self.out = Tree()
        self.count = 0
        self.open: set[int] = set()

    def tree(self, node: yaml.Node) -> Tree:
        self.out.lines[()] = node.start_mark.line + 1
        self.out.data = self.value(node, ())
        return self.out

    def problem(
        self, node: yaml.Node, path: KeyPath, text: str, hint: str | None = None, unreadable: bool = True
    ) -> None:
        where = f"{self.source}:{node.start_mark.line + 1}"
        self.out.problems.append(Problem(text, where, hint, path, unreadable))

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.count += 1
        if self.count > _MAX_VALUES:
            raise ConfigError(f"{self.source}: more than {_MAX_VALUES} values", cause="anchors that multiply")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        if id(node) in self.open:
            self.problem(node, path, f"`{dotted(path)}` contains itself by an anchor")
            return None
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                return self.mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return self.sequence(node, path)
        finally:
            self.open.discard(id(node))
        self.problem(node, path, f"`{dotted(path)}`: the tag {node.tag} has no meaning in a config")
        return None

    def sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        values = []
        for index, item in enumerate(node.value):
            self.out.lines[(*path, index)] = item.start_mark.line + 1
            values.append(self.value(item, (*path, index)))
        return values

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        merged = [value for key, value in node.value if key.tag == _TAG + "merge"]
        values = self.merge(merged, path)
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                continue
            key = self.key(key_node, path)
            if key is None:
                continue
            line = key_node.start_mark.line + 1
            if key in seen:
                text = f"`{dotted((*path, key))}` is given twice: first in line {seen[key]}"
                self.problem(key_node, (*path, key), text, "keep one of them", unreadable=False)
                continue
            seen[key] = line
            self.out.lines[(*path, key)] = line
            values[key] = self.value(value_node, (*path, key))
        return values

    def merge(self, nodes: list[yaml.Node], path: KeyPath) -> dict[str, Any]:
        """The keys merged by `<<: *anchor`; of several the first one wins."""
        values: dict[str, Any] = {}
        flat = [part for node in nodes for part in _merge_parts(node)]
        for node in reversed(flat):
            found = self.value(node, path)
            if isinstance(found, dict):
                values.update(found)
            else:
                self.problem(node, path, "`<<` takes a mapping")
        return values

    def key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "str":
            return self.text(node, path)
        text = node.value if isinstance(node, yaml.ScalarNode) else "[…]"
        hint = f'quote it: "{text}":' if isinstance(node, yaml.ScalarNode) else None
        self.problem(node, (*path, str(text)), f"the key {text} is not text", hint)
        return None

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        name, text = dotted(path), str(node.value)
        if node.tag == _TIME:
            number = self.loader.construct_yaml_int(node) if "." not in text else "a number in base 60"
            message = f"`{name}`: YAML reads {text} without quotes as {number}"
            self.problem(node, path, message, f'quote it: "{text}"')
            return text
        if node.tag == _OCTAL:
            message = f"`{name}`: YAML reads {text} as an octal number"
            self.problem(node, path, message, "drop the leading zero, or quote it to mean text")
            return text
        if node.tag not in _SCALARS:
            self.problem(node, path, f"`{name}`: the tag {node.tag} has no meaning in a config")
            return None
        if node.tag == _TAG + "str":
            return self.text(node, path)
        try:
            return self.loader.construct_object(node)
        except (ValueError, KeyError, yaml.YAMLError):
            self.problem(node, path, f"`{name}`: {text!r} cannot be read as {node.tag.removeprefix(_TAG)}")
            return None

    def text(self, node: yaml.ScalarNode, path: KeyPath) -> str | None:
        """The text, with escaped surrogate pairs (as JSON writers make them) joined to one character."""
        try:
            return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.problem(node, path, f"`{dotted(path)}`: half a character (a lone surrogate escape)")
            return None


def _merge_parts(node: yaml.Node) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else [node]
