"""What the design says about who may do what, written down once more for the tests: nothing here comes from the code.

`method: (subject, right, scopes)`. Rights on a chat are those of the table in api.md, "Rights on a chat".
"""

from __future__ import annotations

OK, MISSING, REFUSED = "allowed", "not found", "forbidden"

CHAT, FILE, USER, TOKEN, NOTHING = "chat", "file", "user", "token", "nothing"

# By what the actor is to the chat. Administrators: by the default, break-glass, without a reason.
CHAT_RIGHTS = {
    #             owner   reader   admin    auditor  stranger
    "read": (OK, OK, REFUSED, MISSING, MISSING),
    "drive": (OK, REFUSED, REFUSED, MISSING, MISSING),
    "patch": (OK, REFUSED, REFUSED, MISSING, MISSING),
    "stop": (OK, REFUSED, OK, MISSING, MISSING),
    "share": (OK, REFUSED, REFUSED, MISSING, MISSING),
    "mark": (OK, OK, REFUSED, MISSING, MISSING),
    "leave": (REFUSED, OK, REFUSED, MISSING, MISSING),
}
RELATIONS = ("owner", "reader", "admin", "auditor", "stranger")

# By the role, and whether the thing is the actor's own.
ROLE_RIGHTS = {
    "anybody": {"member": OK, "admin": OK, "auditor": OK},
    "staff": {"member": REFUSED, "admin": OK, "auditor": OK},
    "admins": {"member": REFUSED, "admin": OK, "auditor": REFUSED},
    "own": {"member": MISSING, "admin": MISSING, "auditor": MISSING, "own": OK},
    "own or admin": {"member": MISSING, "admin": OK, "auditor": MISSING, "own": OK},
    "own or admin, staff sees": {"member": MISSING, "admin": OK, "auditor": REFUSED, "own": OK},
    "own, admin sees": {"member": MISSING, "admin": REFUSED, "auditor": MISSING, "own": OK},
    "own or staff": {"member": MISSING, "admin": OK, "auditor": OK, "own": OK},
}

READS = {"all", "chat:read", "chat:write"}
WRITES = {"all", "chat:write"}
USAGE = {"all", "usage:read"}
ADMINISTERS = {"all", "admin"}
ACCOUNT = {"all"}

METHODS: dict[str, tuple[str, str, set[str]]] = {
    "chats.get": (CHAT, "read", READS),
    "chats.list": (USER, "own", READS),
    "chats.require read": (CHAT, "read", READS),
    "chats.require drive": (CHAT, "drive", WRITES),
    "chats.require patch": (CHAT, "patch", WRITES),
    "chats.require interrupt": (CHAT, "stop", WRITES),
    "chats.require archive": (CHAT, "stop", WRITES),
    "chats.require delete": (CHAT, "stop", WRITES),
    "chats.require share": (CHAT, "share", WRITES),
    "chats.require mark": (CHAT, "mark", WRITES),
    "chats.patch title": (CHAT, "patch", WRITES),
    "chats.patch pin": (CHAT, "mark", WRITES),
    "chats.patch archived": (CHAT, "stop", WRITES),
    "chats.delete": (CHAT, "stop", WRITES),
    "chats.mark_read": (CHAT, "mark", WRITES),
    "chats.list_shares": (CHAT, "share", READS),
    "chats.patch_shares": (CHAT, "share", WRITES),
    "chats.leave": (CHAT, "leave", WRITES),
    "chats.list_accesses": (CHAT, "share", READS),
    "turns.create": (NOTHING, "anybody", WRITES),
    "turns.find_answer": (NOTHING, "anybody", WRITES),
    "turns.find_sent": (CHAT, "drive", WRITES),
    "turns.find_spend_limit": (NOTHING, "anybody", WRITES),
    "turns.send": (CHAT, "drive", WRITES),
    "turns.edit": (CHAT, "drive", WRITES),
    "turns.find_titled": (CHAT, "drive", WRITES),
    "turns.write_title": (CHAT, "drive", WRITES),
    "turns.interrupt": (CHAT, "stop", WRITES),
    "turns.retry": (CHAT, "drive", WRITES),
    "turns.compact": (CHAT, "drive", WRITES),
    "turns.submit_results": (CHAT, "drive", WRITES),
    "turns.reconcile": (CHAT, "stop", WRITES),
    "turns.delete_queued": (CHAT, "drive", WRITES),
    "turns.clear_queue": (CHAT, "drive", WRITES),
    "turns.promote_queued": (CHAT, "drive", WRITES),
    "turns.move_queued": (CHAT, "drive", WRITES),
    "turns.edit_queued": (CHAT, "drive", WRITES),
    "messages.get": (CHAT, "read", READS),
    "messages.list": (CHAT, "read", READS),
    "messages.search": (CHAT, "read", READS),
    "messages.prompts": (CHAT, "read", READS),
    "messages.list_prompts": (USER, "own", READS),
    "messages.list_queue": (CHAT, "read", READS),
    "files.create": (NOTHING, "anybody", WRITES),
    "files.get": (FILE, "read", READS),
    "files.read": (FILE, "read", READS),
    "files.delete": (FILE, "drive", WRITES),
    "files.list_of_chat": (CHAT, "read", READS),
    "files.find_readable": (USER, "own", READS),
    "users.get": (USER, "own or staff", ADMINISTERS),
    "users.list_all": (NOTHING, "staff", ADMINISTERS),
    "users.search_directory": (NOTHING, "anybody", WRITES | ADMINISTERS),
    "users.require_create": (NOTHING, "admins", ADMINISTERS),
    "users.require_update": (USER, "own or admin, staff sees", ADMINISTERS),
    "users.create": (NOTHING, "admins", ADMINISTERS),
    "users.update": (USER, "own or admin, staff sees", ADMINISTERS),
    "users.reset_password": (NOTHING, "admins", ADMINISTERS),
    "users.delete": (NOTHING, "admins", ADMINISTERS),
    "sessions.list": (USER, "own", ACCOUNT),
    "sessions.require_end": (USER, "own", ACCOUNT),
    "sessions.end": (USER, "own", ACCOUNT),
    "sessions.end_others": (USER, "own", ACCOUNT),
    "tokens.list": (USER, "own or admin", ACCOUNT),
    "tokens.require_create": (USER, "own, admin sees", ACCOUNT),
    "tokens.create": (USER, "own, admin sees", ACCOUNT),
    "tokens.delete": (TOKEN, "own or admin", ACCOUNT),
    "providers.list": (NOTHING, "staff", ADMINISTERS),
    "providers.get": (NOTHING, "staff", ADMINISTERS),
    "providers.require": (NOTHING, "admins", ADMINISTERS),
    "providers.record_test": (NOTHING, "admins", ADMINISTERS),
    "providers.create": (NOTHING, "admins", ADMINISTERS),
    "providers.update": (NOTHING, "admins", ADMINISTERS),
    "providers.delete": (NOTHING, "admins", ADMINISTERS),
    "models.list_enabled": (NOTHING, "anybody", READS | ADMINISTERS),
    "models.list": (NOTHING, "staff", ADMINISTERS),
    "models.get": (NOTHING, "staff", ADMINISTERS),
    "models.require": (NOTHING, "admins", ADMINISTERS),
    "models.create": (NOTHING, "admins", ADMINISTERS),
    "models.update": (NOTHING, "admins", ADMINISTERS),
    "models.delete": (NOTHING, "admins", ADMINISTERS),
    "settings.list": (NOTHING, "staff", ADMINISTERS),
    "settings.list_public": (NOTHING, "anybody", READS | ADMINISTERS),
    "settings.require": (NOTHING, "admins", ADMINISTERS),
    "settings.write": (NOTHING, "admins", ADMINISTERS),
    "preferences.get": (USER, "own", ACCOUNT),
    "preferences.are_overrides_allowed": (USER, "own", ACCOUNT),
    "preferences.require": (USER, "own", ACCOUNT),
    "preferences.write": (USER, "own", ACCOUNT),
    "provider_keys.list": (USER, "own", ACCOUNT),
    "provider_keys.require": (USER, "own", ACCOUNT),
    "provider_keys.put": (USER, "own", ACCOUNT),
    "provider_keys.delete": (USER, "own", ACCOUNT),
    "reports.family_cost": (CHAT, "read", READS | USAGE),
    "reports.usage_of": (USER, "own or staff", USAGE),
    "reports.usage_of_all": (NOTHING, "staff", USAGE),
    "reports.spend": (USER, "own or staff", USAGE),
    "reports.audit": (NOTHING, "staff", USAGE),
    "reports.replicas": (NOTHING, "staff", ADMINISTERS),
    "reports.owned_chats": (NOTHING, "staff", ADMINISTERS),
    "reports.job_runs": (NOTHING, "staff", ADMINISTERS),
}

# What the parts of Rookery may do by themselves; everything else is refused. A * stands for the rest of a name.
SYSTEM = {
    "worker": ("chats.get", "chats.require read", "messages.get", "messages.list", "messages.search",
               "messages.prompts", "files.get", "files.read", "files.list_of_chat"),
    "jobs": ("chats.get", "chats.require read", "chats.require archive", "chats.patch archived",
             "chats.require delete", "chats.delete"),
    "stream_sync": ("chats.get", "chats.require read", "messages.get", "messages.list", "messages.search",
                    "messages.prompts", "messages.list_queue"),
    "replica": ("reports.replicas", "reports.owned_chats", "reports.job_runs"),
    "setup": ("users.create", "users.require_create"),
    "cli": ("chats.require interrupt", "turns.interrupt", "turns.reconcile", "users.*", "tokens.*", "providers.*",
            "models.*", "settings.*",
            "reports.usage*", "reports.spend", "reports.audit", "reports.replicas", "reports.owned_chats",
            "reports.job_runs"),
}  # fmt: skip
