"""How clients follow chats live, and how replicas pass live parts to each other. Reads only: it moves no chat.

Durable events come from the database (`sync`), previews from part buffers, here or in other replicas (`relay`). Start
with `loop.py`: what one client is told, and when. `service.py` puts the parts together for the API.
"""
