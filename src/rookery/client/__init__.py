"""What programs need to talk to a Rookery server. Imports nothing of the server: it stands alone.

`reducer` is the contract of a stream: how its events become what a person sees.
"""
