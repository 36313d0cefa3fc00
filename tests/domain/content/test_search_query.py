"""The query language `q`: every key, quoted values, and errors."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.states import Status
from rookery.domain.content import search_query
from rookery.domain.content.search_query import Activity, Archived, ChatQuery, Client, Source

ID = UUID("0190b7a4-0000-7000-8000-000000000001")
MAY = datetime(2026, 5, 1, tzinfo=UTC)

READ: dict[str, ChatQuery] = {
    "": ChatQuery(),
    "  \t\n ": ChatQuery(),
    # words
    "fox": ChatQuery(search=("fox",)),
    "quick  fox": ChatQuery(search=("quick fox",)),
    '"quick fox" -cat OR dog': ChatQuery(search=('"quick fox" -cat OR dog',)),
    '-"lazy dog" fox': ChatQuery(search=('-"lazy dog" fox',)),
    '"a:b c"': ChatQuery(search=('"a:b c"',)),
    '5" disk pinned:true': ChatQuery(search=('5" disk',), pinned=True),
    '"say \\"hi\\" now"': ChatQuery(search=('"say  hi  now"',)),
    "...": ChatQuery(search=("...",)),
    "one title:x two": ChatQuery(search=("one two",), title=("x",)),
    "search:fox": ChatQuery(search=("fox",)),
    'search:"quick fox" cat search:dog': ChatQuery(search=("cat", "quick fox", "dog")),
    'search:"\\"quick fox\\""': ChatQuery(search=('"quick fox"',)),
    # texts
    "title:plan": ChatQuery(title=("plan",)),
    "TITLE:Plan": ChatQuery(title=("Plan",)),
    'title:"two words"': ChatQuery(title=("two words",)),
    'title:"a: \\"b\\""': ChatQuery(title=('a: "b"',)),
    'title:"a"b"c d"': ChatQuery(title=("abc d",)),
    "title:a title:b": ChatQuery(title=("a", "b")),
    "title:100%_,x": ChatQuery(title=("100%_,x",)),
    "repo:web branch:main": ChatQuery(repo=("web",), branch=("main",)),
    # choices
    "archived:false": ChatQuery(archived=Archived.NO),
    "archived:true": ChatQuery(archived=Archived.YES),
    "archived:ANY": ChatQuery(archived=Archived.ANY),
    "has_unread:true": ChatQuery(has_unread=True),
    "has_unread:false": ChatQuery(has_unread=False),
    "pinned:true": ChatQuery(pinned=True),
    "pinned:false": ChatQuery(pinned=False),
    "client:ui": ChatQuery(client=Client.UI),
    "client:api": ChatQuery(client=Client.API),
    "client:cli": ChatQuery(client=Client.CLI),
    **{f"status:{status}": ChatQuery(status=frozenset({status})) for status in Status},
    "status:running,error": ChatQuery(status=frozenset({Status.RUNNING, Status.ERROR})),
    'status:"running, error"': ChatQuery(status=frozenset({Status.RUNNING, Status.ERROR})),
    **{f"status:{word}": ChatQuery(status=frozenset({word})) for word in Activity},
    'status:"Needs you",failed': ChatQuery(status=frozenset({Activity.NEEDS_YOU, Activity.FAILED})),
    "status:needs-you,running": ChatQuery(status=frozenset({Activity.NEEDS_YOU, Status.RUNNING})),
    "source:created_by_me": ChatQuery(source=frozenset({Source.CREATED_BY_ME})),
    "source:shared_with_me,created_by_me": ChatQuery(source=frozenset(Source)),
    # people and things
    "owner:me": ChatQuery(owner="me"),
    "owner:ada": ChatQuery(owner="ada"),
    f"owner:{ID}": ChatQuery(owner=ID),
    f"owner:{str(ID).upper()}": ChatQuery(owner=ID),
    f"folder:{ID}": ChatQuery(folder=ID),
    'folder:"Side projects"': ChatQuery(folder="Side projects"),
    f"workspace:{ID}": ChatQuery(workspace=ID),
    'workspace:"my place"': ChatQuery(workspace="my place"),
    f"workspace:{ID.hex}": ChatQuery(workspace=ID.hex),
    f"model:{ID}": ChatQuery(model=ID),
    'model:"claude: next"': ChatQuery(model="claude: next"),
    "label:team=a": ChatQuery(labels=(("team", "a"),)),
    'label:team="a b" label:env=x=y': ChatQuery(labels=(("team", "a b"), ("env", "x=y"))),
    'label:"team=a: b"': ChatQuery(labels=(("team", "a: b"),)),
    # times
    "active_after:2026-05-01": ChatQuery(active_after=MAY),
    'active_after:"2026-05-01T02:00:00+02:00"': ChatQuery(active_after=MAY),
    'active_before:"2026-05-01t00:00:00.5z"': ChatQuery(active_before=MAY.replace(microsecond=500_000)),
}

REFUSED = [
    "colour:red",
    "http://example.org",
    "-status:running",
    '"title":x',
    ":",
    ":x",
    "title:",
    'title:""',
    'title:"  "',
    "title:a:b",
    'title:"open',
    'title:a"b',
    "title:nul\0",
    "title:half\ud83d",
    "archived:maybe",
    "has_unread:yes",
    "pinned:1",
    "status:asleep",
    "status:running,",
    "status:,",
    "status:running:error",
    "source:mine",
    "client:web",
    "label:team",
    "label:=x",
    "label:team=",
    'label:"bad key=x"',
    f"label:team={'x' * 257}",
    "active_after:yesterday",
    "active_after:2026-13-01",
    "active_after:20260501",
    "active_after:٢٠٢٦-05-01",
    "active_after:2026-05-01T00:00:00Z",
    'active_after:"2026-05-01T00:00:00"',
    'active_after:"2026-05-01 00:00:00Z"',
    'active_before:"0001-01-01T00:00:00+10:00"',
]

ONCE = ["archived:any", "has_unread:true", "pinned:true", "status:error", "source:created_by_me", "owner:me"]
ONCE += ["folder:a", "workspace:a", "model:a", "client:ui", "active_after:2026-05-01", "active_before:2026-05-01"]


@pytest.mark.parametrize("query", READ)
def test_a_query_asks_for_what_it_says(query: str) -> None:
    assert search_query.parse(query) == READ[query]


def test_refusal_of_a_status_lists_only_the_words_that_clients_show() -> None:
    with pytest.raises(InvalidInput) as caught:
        search_query.parse("status:asleep")

    assert "'status:asleep' is not valid: status knows idle, working, needs_you and failed." in str(caught.value)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("done", Activity.IDLE),
        ("Finished", Activity.IDLE),
        ("busy", Activity.WORKING),
        ("stopping", Status.INTERRUPTING),
        ('"needs me"', Activity.NEEDS_YOU),
        ("failure", Activity.FAILED),
        ("waiting", Status.WAITING),
    ],
)
def test_a_status_may_be_written_with_the_words_that_people_use(word: str, state: Status | Activity) -> None:
    assert search_query.parse(f"status:{word}").status == frozenset({state})


@pytest.mark.parametrize("query", REFUSED)
def test_a_bad_term_is_refused_by_name(query: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        search_query.parse(f"good {query}")

    assert caught.value.field == "q"
    shown = query.partition("\0")[0].partition("\ud83d")[0].partition(" ")[0]
    assert shown in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("term", ONCE)
def test_a_key_with_one_value_is_given_once(term: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        search_query.parse(f"{term} fox {term.upper().replace('ME', 'me')}")

    assert "twice" in str(caught.value)


def test_every_key_is_in_the_tables_of_this_test() -> None:
    keys = {term.partition(":")[0].lower() for query in READ for term in query.split()}

    assert set(search_query._KEYS) <= keys
    assert {search_query._FIELDS.get(key, key) for key in search_query._KEYS} == set(ChatQuery.__struct_fields__)


def test_a_query_has_at_most_a_thousand_characters() -> None:
    search_query.parse("x" * 1000)

    with pytest.raises(InvalidInput) as caught:
        search_query.parse("x" * 1001)

    assert caught.value.field == "q"


@pytest.mark.parametrize("text", ["team:a", "team:a:b", "team: "])
def test_a_label_parameter_is_split_at_its_first_colon(text: str) -> None:
    key, _, value = text.partition(":")

    assert search_query.parse_label(text) == (key, value)


@pytest.mark.parametrize("text", ["", ":", "team", "team:", ":a", "bad key:a", "team:\0", "team:\ud83d"])
def test_a_bad_label_parameter_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        search_query.parse_label(text)

    assert caught.value.field == "label"
    assert str(caught.value).isprintable()


PIECES = st.sampled_from(
    [
        *search_query._KEYS,
        ":",
        '"',
        '\\"',
        "\\",
        " ",
        ",",
        "=",
        "-",
        "true",
        "running",
        "me",
        "2026-05-01",
        str(ID),
        "\0",
    ]
)


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=20).map("".join)))
def test_any_text_gives_a_query_or_a_refusal(query: str) -> None:
    refusal, parsed = None, ChatQuery()
    try:
        parsed = search_query.parse(query)
    except InvalidInput as error:
        refusal = error

    if refusal is not None:
        assert refusal.field == "q"
        assert str(refusal).encode()  # an answer can carry it
    texts = (*parsed.title, *parsed.repo, *parsed.branch, *(text for label in parsed.labels for text in label))
    names = [name for name in (parsed.owner, parsed.workspace, parsed.model) if isinstance(name, str)]
    # What goes to the database as it is can go there; full-text searches are prepared on their way.
    assert all(b"\0" not in text.encode() for text in (*texts, *names))


@given(st.text(min_size=1, max_size=50).filter(lambda text: text.strip() and not text.endswith("\\")))
def test_a_quoted_value_comes_back_as_it_was(text: str) -> None:
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text) or '\\"' in text:
        return

    escaped = text.replace('"', '\\"')

    assert search_query.parse(f'title:"{escaped}"').title == (text,)
