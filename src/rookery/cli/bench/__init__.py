"""`rookery bench`: measures this machine, and loads a running server with the turns of many users.

Start reading at `bench` for the measurements and at `load` for the load. Both print through `report`.
"""
