"""The rules of the source tree: imports point downward, SQL is only in `store/`, `domain/` is pure.

Each rule is also checked against a small sample that breaks it, to test the check itself.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import rookery

SOURCE = Path(rookery.__file__).parent
MODULES = sorted(path for path in SOURCE.rglob("*.py"))

# From top to bottom (docs/architecture.md, "The packages"). A layer may import itself and lower layers. Names in one
# line may not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("app",),
    ("settings",),
    ("metrics",),
    ("api",),
    ("stream",),
    ("server",),
    ("worker",),
    ("agents",),
    ("tools",),
    ("mcp",),
    ("loop",),
    ("live",),
    ("titles",),
    ("debug",),
    ("workspaces",),
    ("models",),
    ("demo",),
    ("llm",),
    ("store",),
    ("domain",),
    ("client",),
    ("testing",),
    ("telemetry",),
    ("runtime",),
)
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}

SQL = re.compile(
    r"\b(SELECT\s+.+\s+FROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+(TABLE|INDEX|DATABASE|ROLE)"
    r"|pg_notify|LISTEN\s+\w)",
    re.DOTALL,
)
PURE = frozenset(sys.stdlib_module_names) - {"asyncio", "socket", "subprocess", "time", "random", "os", "threading"}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a module imports, including imports inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "rookery" else (module,)


def upward_imports(layer: str, source: str) -> list[str]:
    found = []
    for name in imported(ast.parse(source)):
        if not name.startswith("rookery."):
            continue
        target = name.split(".")[1]
        if target.startswith("__") and target != "__main__":
            continue  # rookery.__version__
        allowed = target == layer or DEPTH[target] > DEPTH[layer]
        if not allowed:
            found.append(name)
    return found


def impure_imports(source: str) -> list[str]:
    roots = {name: name.split(".")[0] for name in imported(ast.parse(source))}
    return [
        name
        for name, root in roots.items()
        if not (root in PURE or root in ("msgspec", "yaml", "__future__") or name.startswith("rookery.domain"))
    ]


def sql_strings(source: str) -> list[str]:
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [text for text in strings if isinstance(text, str) and SQL.search(text)]


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def offenders(found: Callable[[Path], object], layers: Callable[[str], bool] = lambda layer: True) -> dict[str, object]:
    """Return the findings of a check by module. One test per rule is faster than one per module."""
    return {relative(path): bad for path in MODULES if layers(layer_of(path)) and (bad := found(path))}


def test_modules_import_from_their_own_layer_or_below() -> None:
    found = offenders(lambda path: upward_imports(layer_of(path), path.read_text()), lambda layer: layer != "__init__")

    assert found == {}


def test_modules_outside_the_store_have_no_sql() -> None:
    assert offenders(lambda path: sql_strings(path.read_text()), lambda layer: layer != "store") == {}


def test_domain_modules_import_only_pure_standard_library_msgspec_and_yaml() -> None:
    assert offenders(lambda path: impure_imports(path.read_text()), lambda layer: layer == "domain") == {}


# Modules that handle requests before a user is known: authentication, setup, one-time links, signed addresses.
WITHOUT_AN_ACTOR = {"api/middleware.py", "api/routers/setup.py", "api/routers/auth.py", "api/routers/files.py"}


def touches_the_pool(source: str) -> bool:
    """Return whether a module uses the connection pool directly, without the store that checks rights."""
    return any(isinstance(node, ast.Attribute) and node.attr == "pool" for node in ast.walk(ast.parse(source)))


def test_routers_read_only_as_a_user() -> None:
    found = offenders(lambda path: touches_the_pool(path.read_text()), lambda layer: layer == "api")

    assert set(found) == WITHOUT_AN_ACTOR


PUBLIC = {"__init__.py", "store/machine/__init__.py", "testing/__init__.py", "client/__init__.py"}


def test_packages_say_what_they_own_and_only_public_ones_gather_names() -> None:
    packages = {relative(path): ast.parse(path.read_text()) for path in MODULES if path.name == "__init__.py"}

    assert [name for name, tree in packages.items() if not ast.get_docstring(tree)] == []
    assert {name for name, tree in packages.items() if len(tree.body) != 1} <= PUBLIC


def test_the_checks_find_what_they_look_for() -> None:
    assert upward_imports("domain", "from rookery.store import pool") == ["rookery.store"]
    assert upward_imports("store", "def f():\n    import rookery.api.app") == ["rookery.api.app"]
    assert upward_imports("telemetry", "from rookery import store") == ["rookery.store"]
    assert upward_imports("cli", "from rookery import app, __version__") == []
    assert impure_imports("import asyncio\nimport json\nimport pydantic\nfrom rookery.store import x") == [
        "asyncio",
        "pydantic",
        "rookery.store",
    ]
    assert sql_strings('x = "SELECT a\\n  FROM chats"')
    assert sql_strings('x = f"UPDATE chats SET {y}"')
    assert not sql_strings('"""Select a chat from the list."""')
