"""The running server against its OpenAPI document: generated requests, valid and invalid, by each role.

No response may have an undocumented status or body, or be a crash. Most ids exist, so that requests get past the first
check.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rookery.domain.access.rights import Role
from rookery.store.workspaces import templates as stored_templates
from rookery.workspaces import templates
from rookery.workspaces.operation_requests import as_push
from rookery.workspaces.templates import TemplateFile
from tests.api.api_rig import ApiRig, Person, open_house
from tests.api.debug_rig import DebugRecords, said
from tests.database import Server, fresh_database

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "api" / "openapi.json").read_text())
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# Excluded: streams do not end, uploads are bytes, and a logout would end the test's session.
LEFT_OUT = {
    "chats.watch",
    "chats.stream",
    "chats.git",
    "files.upload",
    "auth.logout",
    "sessions.end_others",
    "auth.change_password",
}
LEFT_OUT |= {"templates.push", "operations.log"}
EXAMPLES = 3
# Several users per role, so that none reaches the rate limit.
CROWD = 3
LEAST_DONE = {Role.MEMBER: 25, Role.AUDITOR: 30, Role.ADMIN: 40}


async def furnish(rig: ApiRig, people: list[Person], root: Person) -> dict[str, str]:
    """Create an object for every path parameter, owned by one of the callers."""
    model = str(await rig.add_model())
    provider = {"type": "openai_compat", "name": "nowhere", "base_url": "http://127.0.0.1:9/v1", "allow_user_key": True}
    made = (await root.http.post("/api/v1/model-providers", json=provider)).json()
    owner = people[0].http
    chat = (await owner.post("/api/v1/chats", json={"content": [{"type": "text", "text": "hello"}]})).json()
    waiting = {"content": [{"type": "text", "text": "and then"}]}
    sent = (await owner.post(f"/api/v1/chats/{chat['id']}/messages", json=waiting)).json()
    messages = (await owner.get(f"/api/v1/chats/{chat['id']}/messages")).json()["items"]
    named = {"Content-Type": "text/plain", "Content-Disposition": 'attachment; filename="a.txt"'}
    file = (await owner.post("/api/v1/files", content=b"hello", headers=named)).json()
    spare = await rig.add("spare")
    body = {"name": "spare", "scopes": ["chat:read"]}
    token = (await spare.http.post("/api/v1/tokens", json=body)).json()
    run, (step,) = await DebugRecords(rig.database.api).run(chat["id"], [said("Hello.")], model_config_id=UUID(model))
    folder = (await owner.post("/api/v1/folders", json={"name": "Work"})).json()
    return {
        "folder": folder["id"],
        "chat": chat["id"],
        "message": str(messages[0]["id"]),
        "queued": str(sent["queued_message"]["id"]),
        "file": file["id"],
        "provider": made["id"],
        "model_config": model,
        "user": str(spare.id),
        "token": token["id"],
        "run": str(run),
        "step": str(step),
        "number": "1",
        **await furnish_workspace(rig, people[0]),
    }


async def furnish_workspace(rig: ApiRig, owner: Person) -> dict[str, str]:
    packed = templates.pack({"template.toml": TemplateFile(b'name = "plain"')})
    async with rig.database.api.acquire() as conn:
        await stored_templates.push_template(conn, as_push(packed))
        workspace = await conn.fetchval(
            "INSERT INTO workspaces (owner_id, name, template, template_revision) VALUES ($1, 'w', 'plain', $2)"
            " RETURNING id",
            owner.id,
            packed.revision,
        )
        operation = await conn.fetchval(
            "INSERT INTO workspace_operations (workspace_id, kind, reason, state, finished_at)"
            " VALUES ($1, 'stop', 'user', 'succeeded', now()) RETURNING id",
            workspace,
        )
    return {"template": "plain", "workspace": str(workspace), "operation": str(operation)}


@dataclass
class Party:
    """A user with a role in a separate rig, and the operations that succeeded."""

    role: Role
    url: str
    tokens: Iterator[str]
    known: Mapping[str, str]
    done: set[str] = field(default_factory=set)

    def path_parameters(self, generated: Mapping[str, object]) -> dict[str, object]:
        return {name: self.known.get(name, value) for name, value in generated.items()}


@dataclass
class Trial:
    """Sends generated requests to each rig, and collects failures.

    A request is generated once for all rigs, because generating takes several times as long as answering.
    """

    parties: list[Party]
    problems: list[str] = field(default_factory=list)
    session: requests.Session = field(default_factory=requests.Session)

    def run(self) -> None:
        schema = schemathesis.openapi.from_dict(DOCUMENT)
        for result in schema.get_all_operations():
            assert isinstance(result, Ok)
            operation = result.ok()
            name = operation.definition.raw["operationId"]
            if name not in LEFT_OUT:
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    self._try(name, operation.as_strategy(generation_mode=mode))

    def _try(self, name: str, cases: st.SearchStrategy[Any]) -> None:
        @given(case=cases, is_known=st.sampled_from([True, True, False]))
        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
        )
        def check(case: Any, is_known: bool) -> None:
            generated = case.path_parameters
            for party in self.parties:
                if is_known:
                    case.path_parameters = party.path_parameters(generated)
                self._send(name, case, party)

        try:
            check()
        except Unsatisfiable:
            return  # a request without parameters cannot be made wrong

    def _send(self, name: str, case: Any, party: Party) -> None:
        headers = {"Authorization": f"Bearer {next(party.tokens)}"}
        try:
            response = case.call(base_url=party.url, headers=headers, session=self.session, timeout=30)
            case.validate_response(response, checks=CHECKS)
        except (Exception, FailureGroup) as error:
            self.problems.append(f"{name} by {party.role}: {error}")
            return
        if response.status_code < 300:
            party.done.add(name)


@asynccontextmanager
async def open_party(server: Server, tmp_path: Path, role: Role) -> AsyncIterator[Party]:
    async with fresh_database(server) as database_url, open_house(database_url, tmp_path) as rig:
        root = await rig.add("chief", role=Role.ADMIN)
        people = [await rig.add(f"{role}{number}", role=role) for number in range(CROWD)]
        known = await furnish(rig, people, root)
        yield Party(role, rig.url, itertools.cycle(person.token for person in people), known)


async def test_server_answers_every_role_as_its_document_says(database_server: Server, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        places = {role: tmp_path / role for role in Role}
        for place in places.values():
            place.mkdir()
        parties = [
            await stack.enter_async_context(open_party(database_server, place, role)) for role, place in places.items()
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # exceptions of the library
            trial = Trial(parties)
            await asyncio.to_thread(trial.run)

    assert trial.problems == [], "\n\n".join(trial.problems)
    # With a lower number, most requests fail the first check, and the test proves little.
    assert {party.role: len(party.done) for party in parties if len(party.done) < LEAST_DONE[party.role]} == {}
