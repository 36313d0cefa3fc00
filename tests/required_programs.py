"""Marks for tests that need a program on the machine."""

from __future__ import annotations

import os
import shutil

import pytest


def requires(*programs: str) -> pytest.MarkDecorator:
    """Skip a test if one of the programs is missing. In CI the test fails instead."""
    missing = [name for name in programs if shutil.which(name) is None]
    is_skipped = bool(missing) and not os.environ.get("CI")
    return pytest.mark.skipif(is_skipped, reason=f"{', '.join(missing)} is not installed")
