from __future__ import annotations

from tests.api.house import House, Person


async def test_version_is_told_to_whoever_is_logged_in(house: House, ada: Person) -> None:
    found = await ada.http.get("/api/v1/version")

    assert found.status_code == 200, found.text
    assert found.json()["api"] == 1


async def test_nobody_is_told_to_log_in(house: House) -> None:
    found = await house.nobody.get("/api/v1/version")

    assert found.status_code == 401
    assert found.json()["code"] == "unauthenticated"
    assert found.json()["request_id"] == found.headers["x-request-id"]


async def test_document_describes_its_own_operation(house: House, ada: Person) -> None:
    found = (await ada.http.get("/api/v1/openapi.json")).json()

    assert found["openapi"] == "3.1.0"
    assert found["paths"]["/api/v1/version"]["get"]["operationId"] == "server.version"


async def test_unknown_parameter_is_refused_by_name(house: House, ada: Person) -> None:
    found = await ada.http.get("/api/v1/version", params={"verbose": "1"})

    assert found.status_code == 400
    assert found.json()["fields"] == [{"field": "verbose", "message": "There is no such parameter."}]
