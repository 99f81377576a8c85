"""Kernel call sites of one Python file, judged by its syntax tree: comments, strings and bare imports never count."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from perfgate.determinism.coverage.patterns import CONDITIONS, Patterns


@dataclass(frozen=True)
class Site:
    """Where a file calls, decorates with or derives from something that makes it a kernel file."""

    line: int
    kind: str
    what: str


class Unparsable(Exception):  # noqa: N818 - says what the file is
    """The file may hold kernel calls, but is no Python that this interpreter can parse."""


def call_sites(content: bytes, patterns: Patterns) -> list[Site]:
    """Every kernel call site, in line order. Raises :class:`Unparsable` with the parser's message and line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in someone's strings are not our business
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unparsable(f"{error.msg}, line {error.lineno}" if isinstance(error, SyntaxError) else str(error)) from error
    nodes = list(_relevant(tree))
    return sorted(set(_sites(nodes, _names_of(nodes), patterns)), key=lambda site: (site.line, site.what))


_RELEVANT = (ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)


def _relevant(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide, in no order. Twice as fast as ``ast.walk``, which also visits every name and context."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _RELEVANT):
            yield node
        for name in node._fields:
            value = getattr(node, name)
            if isinstance(value, list):
                waiting += [item for item in value if isinstance(item, ast.AST) and not isinstance(item, _LEAVES)]
            elif isinstance(value, ast.AST) and not isinstance(value, _LEAVES):
                waiting.append(value)


@dataclass
class _Names:
    """What the names of a file stand for: ``tl`` -> ``triton.language``; modules imported with a star."""

    aliases: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    def dotted(self, node: ast.expr) -> list[str]:
        """The dotted names an expression may stand for; none where it isn't a name or an attribute of one."""
        if isinstance(node, ast.Name):
            if node.id in self.aliases:
                return [self.aliases[node.id]]
            return [f"{module}.{node.id}" for module in self.stars]
        if isinstance(node, ast.Attribute):
            return [f"{base}.{node.attr}" for base in self.dotted(node.value)]
        return []

    def library(self, node: ast.expr) -> str:
        """The top-level package that an imported name belongs to; "" for anything that isn't imported."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return self.aliases.get(node.id, "").partition(".")[0] if isinstance(node, ast.Name) else ""


def _names_of(nodes: list[ast.AST]) -> _Names:
    names = _Names()
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == "*":
                    names.stars.append(module)
                else:
                    names.aliases[alias.asname or alias.name] = f"{module}.{alias.name}"
    assignments = [node for node in nodes if isinstance(node, ast.Assign)]
    for node in sorted(assignments, key=lambda node: node.lineno):  # kernel = flash_attn_func; kernel(...)
        if isinstance(node.value, ast.Name | ast.Attribute):
            library = names.library(node.value)
            for target in node.targets:
                if library and isinstance(target, ast.Name) and target.id not in names.aliases:
                    names.aliases[target.id] = names.dotted(node.value)[0]
    return names


def _sites(nodes: list[ast.AST], names: _Names, patterns: Patterns) -> Iterator[Site]:
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from _called(node, names, patterns)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                yield from _named(decorator, decorator.lineno, "@", names, patterns)
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                yield from _derived(base, names, patterns)


def _called(call: ast.Call, names: _Names, patterns: Patterns) -> Iterator[Site]:
    yield from _named(call.func, call.lineno, "", names, patterns)
    if "functools.partial" in names.dotted(call.func) and call.args:
        yield from _named(call.args[0], call.lineno, "partial of ", names, patterns)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else _imported_from_torch(call.func, names)
    if method in patterns.methods and names.library(call.func) in ("", "torch") and _condition_holds(method, call, names):
        yield Site(call.lineno, patterns.methods[method], f".{method}(")


def _named(node: ast.expr, line: int, how: str, names: _Names, patterns: Patterns) -> Iterator[Site]:
    for dotted in names.dotted(node):
        kind = patterns.kind_of(dotted)
        if kind:
            yield Site(line, kind, f"{how}{dotted}")


def _derived(base: ast.expr, names: _Names, patterns: Patterns) -> Iterator[Site]:
    for dotted in names.dotted(base):
        kind = patterns.kind_of(dotted)
        if kind and dotted not in patterns.exact:
            yield Site(base.lineno, kind, f"class of {dotted}")


def _imported_from_torch(node: ast.expr, names: _Names) -> str:
    return names.aliases[node.id].rpartition(".")[2] if isinstance(node, ast.Name) and names.library(node) == "torch" else ""


def _condition_holds(method: str, call: ast.Call, names: _Names) -> bool:
    condition = CONDITIONS.get(f".{method}")
    if condition is None:
        return True
    position = condition.position + (names.library(call.func) == "torch")  # torch.index_put takes the tensor first
    given = [keyword.value for keyword in call.keywords if keyword.arg == condition.keyword]
    given += call.args[position : position + 1]
    return any(not (isinstance(value, ast.Constant) and not value.value) for value in given)
