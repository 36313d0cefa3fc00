"""`python -m rookery` is `rookery`."""

from rookery.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
