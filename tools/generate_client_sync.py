"""Writes the blocking twins of the client's namespaces: same signatures, same words, every body one call.

    python -m tools.generate_client_sync > src/rookery/client/sync_namespaces.py

What a coroutine returns comes back through the portal; an asynchronous iterator becomes an iterator; the two streams
become their blocking twins. A test compares the committed file with what this gives.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.formatting import formatted

CLIENT = Path(__file__).parents[1] / "src" / "rookery" / "client"
MODULES = ("account", "catalog", "chats", "files", "messages", "queues", "tokens", "workspaces")
TWINS = {"LiveChat": "BlockingLiveChat", "Watch": "BlockingWatch"}

HEAD = '''"""The namespaces of the blocking client. Made by tools/generate_client_sync.py; change the other ones."""

from __future__ import annotations

from collections.abc import Iterator

from rookery.client.blocking import BlockingLiveChat, BlockingWatch, Portal
'''


def generate() -> str:
    trees = {name: ast.parse((CLIENT / f"{name}.py").read_text()) for name in MODULES}
    imports = [ast.unparse(node) for tree in trees.values() for node in tree.body if isinstance(node, ast.ImportFrom)]
    lines = [HEAD, *imports]
    for module, tree in trees.items():
        own = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Async")]
        used = [*(node.name for node in own), *_constants(tree)]
        lines.append(f"from rookery.client.{module} import {', '.join(used)}")
        lines.extend(line for node in own for line in _twin(node))
    return formatted("\n".join(_imports_first(lines)) + "\n")


def _constants(tree: ast.Module) -> Iterator[str]:
    """Names that signatures may use as defaults; the formatter drops those that none does."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _imports_first(lines: list[str]) -> list[str]:
    return sorted(lines, key=lambda line: 0 if line == HEAD else 1 if line.startswith("from ") else 2)


def _twin(node: ast.ClassDef) -> Iterator[str]:
    yield f"\n\nclass {node.name.removeprefix('Async')}:"
    yield f'    """{ast.get_docstring(node)}"""'
    yield f"    def __init__(self, inner: {node.name}, portal: Portal) -> None:"
    yield "        self._inner = inner"
    yield "        self._portal = portal"
    for method in node.body:
        if isinstance(method, ast.AsyncFunctionDef | ast.FunctionDef) and not method.name.startswith("_"):
            yield from _method(method)


def _method(method: ast.AsyncFunctionDef | ast.FunctionDef) -> Iterator[str]:
    call = f"self._inner.{method.name}({', '.join(_passed(method.args))})"
    assert method.returns is not None
    returns = ast.unparse(method.returns)
    if isinstance(method, ast.FunctionDef):
        returns, body = TWINS[returns], f"{TWINS[returns]}({call}, self._portal)"
    elif returns.startswith("AsyncIterator["):
        returns, body = returns.removeprefix("Async"), f"self._portal.iterate({call})"
    else:
        body = f"self._portal.run({call})"
    yield f"\n    def {method.name}({ast.unparse(method.args)}) -> {returns}:"
    if said := ast.get_docstring(method, clean=False):
        yield f'        """{_without_async(said)}"""'
    yield f"        {body}" if returns == "None" else f"        return {body}"


def _passed(arguments: ast.arguments) -> Iterator[str]:
    yield from (each.arg for each in arguments.args[1:])
    yield from (f"{each.arg}={each.arg}" for each in arguments.kwonlyargs)


def _without_async(said: str) -> str:
    return said.replace("async with", "with").replace("async for", "for")


if __name__ == "__main__":
    sys.stdout.write(generate())
