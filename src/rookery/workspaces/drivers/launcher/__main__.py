"""`python -m`, or a zipapp of this package."""

from rookery.workspaces.drivers.launcher.run import main

main()
