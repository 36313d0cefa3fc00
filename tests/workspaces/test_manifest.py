"""`template.toml`: every rule, all problems together, each with its path."""

from __future__ import annotations

import msgspec
import pytest

from rookery.workspaces import manifest
from rookery.workspaces.drivers.driver_interface import Limits, Sandbox
from rookery.workspaces.manifest import ScriptRef
from rookery.workspaces.template_errors import TemplateInvalid

WHOLE = """
name = "python"
display_name = "Python"
description = "For Python."
icon = "snake"
driver = "local"
directory = "~/project"
idle_stop_after = "2h"
update_on_start = false
env = { PYTHONUNBUFFERED = "1" }
[startup]
script = "startup.sh"
timeout = "10m"
[sandbox]
network = "none"
ro_binds = ["/srv/data"]
nested = false
[limits]
memory_mb = 512
cpus = 1.5
[context]
sources = ["~/shared"]
[[parameters]]
name = "version"
options = ["3.11", "3.12"]
default = "3.12"
[[parameters]]
name = "extras"
type = "list(string)"
mutable = true
regex = "[a-z]+"
[[presets]]
id = "small"
name = "Small"
default = true
parameters = { version = "3.11" }
"""


def problems(text: str, *, files: tuple[str, ...] = ()) -> dict[str, str]:
    with pytest.raises(TemplateInvalid) as caught:
        manifest.parse(text, files=files)
    return {problem.field: problem.detail for problem in caught.value.problems}


def test_whole_manifest_is_read_and_survives_the_database() -> None:
    read = manifest.parse(WHOLE, files=("startup.sh",))

    assert (read.name, read.directory, read.update_on_start) == ("python", "~/project", False)
    assert read.idle_stop_after.total_seconds() == 7200
    assert read.startup == ScriptRef("startup.sh", 600)
    assert read.sandbox == Sandbox(network="none", ro_binds=("/srv/data",), nested=False)
    assert read.limits == Limits(memory_mb=512, cpus=1.5)
    assert [each.name for each in read.parameters] == ["version", "extras"]
    assert read.presets[0].parameters == {"version": "3.11"}
    assert manifest.decode(msgspec.json.decode(manifest.encode(read))) == read


def test_hosts_are_kept_in_the_form_they_are_compared_in() -> None:
    hosts = '["Packages.Example.org", "*.Files.Example.net.", "packages.example.org", "example.com:8443"]'
    read = manifest.parse(f'name = "a"\n[sandbox]\nnetwork = "hosts"\nhosts = {hosts}')

    assert read.sandbox == Sandbox(
        network="hosts", hosts=("packages.example.org", "*.files.example.net", "example.com:8443")
    )
    assert manifest.decode(msgspec.json.decode(manifest.encode(read))) == read


def test_network_is_public_unless_a_template_says_otherwise() -> None:
    assert manifest.parse('name = "a"').sandbox.network == "public"
    assert manifest.parse('name = "a"\n[sandbox]\nnested = false').sandbox.network == "public"
    assert [manifest.parse(f'name = "a"\n[sandbox]\nnetwork = "{name}"').sandbox.network for name in NETWORKS] == [
        *("none", "public", "host")
    ]
    assert manifest.parse(f'name = "a"\n{SSH}[sandbox]\nnetwork = "host"').sandbox.network == "host"


NETWORKS = ("none", "public", "host")


def test_names_of_networks_from_before_are_read_as_what_they_are_called_now() -> None:
    full = manifest.parse('name = "a"\n[sandbox]\nnetwork = "full"')
    proxy = manifest.parse('name = "a"\n[sandbox]\nnetwork = "proxy"\nhosts = ["a.test"]')
    stored = {"name": "a", "sandbox": {"enabled": True, "network": "full", "hosts": [], "nested": False}}

    assert (full.sandbox.network, proxy.sandbox.network, proxy.sandbox.hosts) == ("host", "hosts", ("a.test",))
    assert manifest.decode(stored).sandbox == Sandbox(network="host", nested=False)
    assert manifest.decode({"name": "a", "sandbox": {"network": "proxy"}}).sandbox.network == "hosts"
    assert manifest.decode({"name": "a"}).sandbox.network == "public"
    assert stored["sandbox"] == {"enabled": True, "network": "full", "hosts": [], "nested": False}


SSH = 'driver = "ssh"\n[ssh]\nhost = "h"\nknown_hosts = "k"\n'


@pytest.mark.parametrize(
    ("text", "field", "why"),
    [
        ('[sandbox]\nnetwork = "hosts"', "sandbox.hosts", "at least one host"),
        ('[sandbox]\nnetwork = "hosts"\nhosts = []', "sandbox.hosts", "at least one host"),
        ('[sandbox]\nhosts = ["a.test"]', "sandbox.hosts", 'no effect without network = "hosts"'),
        ('[sandbox]\nnetwork = "none"\nhosts = []', "sandbox.hosts", 'no effect without network = "hosts"'),
        ('[sandbox]\nnetwork = "hosts"\nhosts = "a.test"', "sandbox.hosts", "must be a list"),
        ('[sandbox]\nnetwork = "hosts"\nhosts = [1]', "sandbox.hosts", "must be text"),
        ('[sandbox]\nnetwork = "hosts"\nhosts = ["https://a.test"]', "sandbox.hosts", "leave out the scheme"),
        ('[sandbox]\nnetwork = "hosts"\nhosts = ["10.0.0.1"]', "sandbox.hosts", "is an address"),
        ('[sandbox]\nnetwork = "hosts"\nhosts = ["*"]', "sandbox.hosts", "not the name of a host"),
        ('[sandbox]\nnetwork = "hosts"\nhost = ["a.test"]', "sandbox.host", "no such key"),
        ('[sandbox]\nnetwork = "filtered"', "sandbox.network", "one of none, hosts, public, host"),
        ('[sandbox]\nnetwork = ""', "sandbox.network", "one of none, hosts, public, host"),
        ('[sandbox]\nnetwork = "HOST"', "sandbox.network", "one of none, hosts, public, host"),
        ("[sandbox]\nnetwork = true", "sandbox.network", "one of none, hosts, public, host"),
        ('[sandbox]\nnetwork = ["host"]', "sandbox.network", "one of none, hosts, public, host"),
        ('[sandbox]\nnetwork = "public"\nhosts = ["a.test"]', "sandbox.hosts", 'no effect without network = "hosts"'),
        (f'{SSH}[sandbox]\nnetwork = "hosts"\nhosts = ["a.test"]', "sandbox.network", "driver ssh has no proxy"),
        (f'{SSH}[sandbox]\nnetwork = "public"', "sandbox.network", "driver ssh has no proxy"),
        (SSH, "sandbox.network", 'requires a network: "host" '),
        (f"{SSH}[sandbox]\nnested = false", "sandbox.network", 'requires a network: "host" '),
    ],
)
def test_network_that_cannot_be_had_is_told(text: str, field: str, why: str) -> None:
    assert why in problems(f'name = "a"\n{text}')[field]


def test_scripts_of_the_usual_names_need_no_table() -> None:
    read = manifest.parse('name = "a"', files=("startup.sh", "shutdown.sh"))

    assert read.startup == ScriptRef("startup.sh", 600)
    assert read.shutdown == ScriptRef("shutdown.sh", 60)
    assert manifest.parse('name = "a"').startup is None


def test_all_problems_are_reported_together_with_their_paths() -> None:
    found = problems(
        """
        name = "Not A Slug"
        driver = "docker"
        directory = "project/../x"
        idle_stop_after = "soon"
        title = "typo"
        env = { "1A" = "x", B = 1 }
        [startup]
        script = "missing.sh"
        minutes = "1m"
        [sandbox]
        network = "filtered"
        rw_binds = ["~/x"]
        [limits]
        memory_mb = -1
        [context]
        source = []
        """
    )

    assert set(found) == {
        "name",
        "driver",
        "directory",
        "idle_stop_after",
        "title",
        "env.1A",
        "env.B",
        "startup.script",
        "startup.minutes",
        "sandbox.network",
        "sandbox.rw_binds",
        "limits.memory_mb",
        "context.source",
    }


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "name"),
        ('name = "a"\nname = "b"', "template.toml"),
        ('name = "a"\nenv = 3', "env"),
        ('name = "a"\n[[parameters]]\nname = "1x"', "parameters[0].name"),
        ('name = "a"\n[[parameters]]\nname = "x"\ntype = "int"', "parameters[0].type"),
        ('name = "a"\n[[parameters]]\nname = "x"\ntype = "number"\ndefault = "many"', "parameters[0].default"),
        ('name = "a"\n[[parameters]]\nname = "x"\noptions = ["a"]\ndefault = "b"', "parameters[0].default"),
        ('name = "a"\n[[parameters]]\nname = "x"\nregex = "("', "parameters[0].regex"),
        ('name = "a"\n[[parameters]]\nname = "x"\nkind = "y"', "parameters[0].kind"),
        ('name = "a"\n[[parameters]]\nname = "x"\ntype = "number"\nmin = 3\nmax = 2', "parameters[0].max"),
        ('name = "a"\n[[parameters]]\nname = "x"\n[[parameters]]\nname = "X"', "parameters[1].name"),
        ('name = "a"\n[[presets]]\nid = "p"\nparameters = { y = 1 }', "presets[0].parameters.y"),
        ('name = "a"\n[[presets]]\nid = "p"\n[[presets]]\nid = "p"', "presets[1].id"),
        ('name = "a"\ndriver = "ssh"', "ssh"),
        ('name = "a"\ndriver = "ssh"\n[ssh]\nhost = "h"', "ssh.known_hosts"),
        ('name = "a"\ndriver = "ssh"\n[ssh]\nhost = "-oProxyCommand=x"\nknown_hosts = "k"', "ssh.host"),
        ('name = "a"\n[sandbox]\nrw_binds = ["$ROOKERY_PARAM_folder"]', "sandbox.rw_binds[0]"),
        ('name = "a"\n[sandbox]\nro_binds = ["/"]', "sandbox.ro_binds"),
    ],
)
def test_each_rule_names_its_place(text: str, field: str) -> None:
    assert field in problems(text)
