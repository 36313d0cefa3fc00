"""Templates bind only what the operator shares: when they are pushed, and at each start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rookery.workspaces import manifest, shared_folders
from rookery.workspaces.template_errors import TemplateInvalid
from tests.workspaces.workspaces_rig import WorkspacesRig, open_yard

SHARED = ("/srv/projects", "/srv/a,b")


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[WorkspacesRig]:
    async with open_yard(database_url) as made:
        yield made


@pytest.mark.parametrize("folder", ["/srv/projects", "/srv/projects/one/two", "/srv/a,b/c", "/srv/projects/..."])
def test_folder_that_is_listed_or_below_is_shared(folder: str) -> None:
    assert shared_folders.problem_of(folder, SHARED) is None


@pytest.mark.parametrize(
    "folder",
    [
        "/",
        "/srv",
        "/srv/projects2",
        "/srv/projects/../keys",
        "srv/projects",
        "",
        "//srv/projects",
        "/SRV/projects",
        "~",
    ],
)
def test_folder_elsewhere_is_not_shared(folder: str) -> None:
    problem = shared_folders.problem_of(folder, SHARED)

    assert problem is not None
    assert repr(folder) in problem
    assert "workspaces.shared_folders" in problem


def test_nothing_is_shared_by_default() -> None:
    assert shared_folders.problem_of("/srv/projects", ()) is not None


def test_template_is_refused_for_each_bind_that_is_not_shared() -> None:
    read = manifest.parse(
        'name = "a"\n[sandbox]\nro_binds = ["/srv/projects", "/opt/data"]\nrw_binds = ["/var/x", "$ROOKERY_PARAM_f"]\n'
        '[[parameters]]\nname = "f"\nregex = "/.+"\nrequired = true\n',
        files=(),
    )

    with pytest.raises(TemplateInvalid) as refused:
        shared_folders.check_template(read, SHARED)

    assert [each.field for each in refused.value.problems] == ["sandbox.ro_binds[1]", "sandbox.rw_binds[0]"]
    assert "'/opt/data'" in refused.value.problems[0].detail
    assert "workspaces.shared_folders" in refused.value.problems[0].detail


@pytest.mark.parametrize("driver", ["local", "ssh"])
async def test_stored_template_that_binds_what_is_not_shared_does_not_start(rig: WorkspacesRig, driver: str) -> None:
    """A template that was stored before the check existed or before the setting was changed."""
    place = '\n[ssh]\nhost = "h"\nknown_hosts = "h ssh-ed25519 AAAA"\n' if driver == "ssh" else ""
    text = f'name = "plain"\ndriver = "{driver}"\n[sandbox]\nnetwork = "none"\nrw_binds = ["/srv/projects"]\n{place}'
    await rig.push(text.encode())
    replica, fake = rig.replica()
    replica.parts.drivers["ssh"] = fake  # type: ignore[index]
    await rig.run(replica)

    failed = await rig.settled(await rig.create(replica), "failed")

    assert failed.error_code == "invalid_workspace"
    assert failed.error is not None
    assert "'/srv/projects'" in failed.error
    assert "workspaces.shared_folders" in failed.error
    assert fake.starts == []
