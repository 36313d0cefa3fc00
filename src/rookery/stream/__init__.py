"""Live streams of chats to clients, and the relay of live parts between replicas. The package changes no chat.

Durable events come from the database (`snapshots`). Previews come from the part buffer of this replica or, through
`relay`, of another one. Start with `viewer`, which decides the events that one client gets. `service` assembles the
package for the API.
"""
