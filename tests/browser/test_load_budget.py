"""The load budget: the files that a browser loads before the first chat can be used."""

from __future__ import annotations

import re

from rookery.api.web_app import PAGE, packaged

MAX_SCRIPTS_BYTES = 260 * 1024
MAX_SCRIPT_BYTES = 90 * 1024
MAX_STYLES_BYTES = 25 * 1024


def test_start_of_the_page_stays_within_its_budget() -> None:
    files = packaged().files
    named = set(re.findall(r'(?:src|href)="(/assets/[^"]+)"', files[PAGE].path.read_text()))
    sizes = {name: files[name].encoded.get("gzip", files[name].path).stat().st_size for name in named}
    scripts = {name: size for name, size in sizes.items() if name.endswith(".js")}
    styles = {name: size for name, size in sizes.items() if name.endswith(".css")}

    assert scripts
    assert sum(scripts.values()) < MAX_SCRIPTS_BYTES, scripts
    assert max(scripts.values()) < MAX_SCRIPT_BYTES, scripts
    assert 0 < sum(styles.values()) < MAX_STYLES_BYTES, styles
