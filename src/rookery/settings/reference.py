"""The reference page of the start settings, generated from their table."""

from __future__ import annotations

from rookery.settings.keys import KEYS

_REFERENCE_HEAD = """\
# Settings

Generated from `src/rookery/settings/keys.py`. A flag takes precedence over the environment, the environment over
the TOML file, the file over the default. `rookery admin config --sources` shows the effective values and their sources.

- Key `a.b_c` is the flag `--a-b-c`, the variable `ROOKERY_A_B_C`, and `b_c` in the table `[a]` of the TOML file.
- A key marked *secret* can also come from a file: `ROOKERY_A_B_C_FILE` holds its path. Setting both is an error. It has
  no flag, because other users of the machine can read command lines; `--database-url` is accepted without a password.
- Durations are written `500ms`, `25s`, `2m`, `1h`, or as a number of seconds.
- Lists are arrays in TOML, and separated by commas in flags and variables. An empty variable counts as not set.
- A relative path in the TOML file is relative to the directory of that file.
- An unknown key or variable causes a warning, or an error with `--strict-config`.

| Key | Flag | Variable | Value | Default | Meaning |
| --- | --- | --- | --- | --- | --- |
"""


def reference_markdown() -> str:
    """Return the page docs/reference/settings.md."""
    rows = []
    for key in KEYS:
        default = key.otherwise or f"`{str(key.default).lower() if key.kind.is_switch else key.default}`"
        value = f"{key.kind.name}, *secret*" if key.secret else key.kind.name
        flag = f"`{key.flag}`" if key.has_flag else "none"
        rows.append(f"| `{key.name}` | {flag} | `{key.variable}` | {value} | {default} | {key.meaning} |\n")
    return _REFERENCE_HEAD + "".join(rows)
