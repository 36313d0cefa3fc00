import { useInfiniteQuery } from "@tanstack/react-query";
import { type FormEvent, useEffect, useState } from "react";
import { Link, useSearchParams } from "react-router";
import { listChats } from "@/api/chats";
import { ApiError, sentence } from "@/api/errors";
import {
  everywhere,
  type Pill,
  queryOf,
  refusedPill,
  STATES,
  takePills,
  withPills,
  wordsOf,
} from "@/chat/search_pills";
import { lineOf, markOf } from "@/chat/sidebar_list";
import { MarkedWords } from "@/features/palette/marked_words";
import { Pills } from "@/features/palette/pills";
import { ChatMark } from "@/features/sidebar/chat_mark";
import { Button } from "@/ui/button";
import { cx } from "@/ui/cx";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Ago } from "@/ui/relative_time";

/** The page with all results of a search. */
export function SearchPage() {
  const [params, setParams] = useSearchParams();
  const q = params.get("q") ?? "";
  const { pills, rest } = takePills(q, true);
  const [typed, setTyped] = useState(rest);
  useEffect(() => setTyped(rest), [rest]);
  const found = useInfiniteQuery({
    queryKey: ["search", "all", q],
    queryFn: ({ pageParam, signal }) =>
      listChats({ q: everywhere(q), ...(pageParam ? { cursor: pageParam } : {}) }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    enabled: q.trim().length >= 2,
    retry: false,
  });
  const chats = found.data?.pages.flatMap((page) => page.items) ?? [];

  const refusal = found.error instanceof ApiError ? (found.error.field("q") ?? "") : "";
  const wrong = refusedPill(pills, refusal);
  const valid = pills.filter((one) => one !== wrong);
  const words = wordsOf(rest);

  // A filter that the server refused does not stay: it would fail every later search too.
  const search = (more: Pill[], text: string) => setParams({ q: queryOf(withPills(valid, more), text) });

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    const added = takePills(typed, true);
    search(added.pills, added.rest);
  }

  return (
    <Page title="Search">
      <form onSubmit={onSubmit} className="flex items-start gap-2">
        <TextField
          label="Words"
          type="search"
          className="flex-1"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
          hint="You can also type label:key=value, pinned:true, has_unread:true or active_after:2026-05-01."
        />
        <Button type="submit" kind="primary" className="mt-6 h-9!">
          Search
        </Button>
      </form>
      <States
        chosen={pills.find((one) => one.name === "status")?.value}
        onChoose={(state) =>
          state
            ? search([{ name: "status", value: state }], rest)
            : setParams({
                q: queryOf(
                  pills.filter((one) => one.name !== "status"),
                  rest,
                ),
              })
        }
      />
      <Pills
        pills={pills}
        wrong={wrong}
        onRemove={(pill) =>
          setParams({
            q: queryOf(
              pills.filter((one) => one !== pill),
              rest,
            ),
          })
        }
      />
      {found.error && <Notice kind="error">{wrong ? refusal : sentence(found.error)}</Notice>}
      <ul className="divide-y divide-line">
        {chats.map((chat) => (
          <li key={chat.id}>
            <Link
              to={
                chat.match?.message_id
                  ? `/c/${chat.match.chat_id ?? chat.id}?m=${chat.match.message_id}`
                  : `/c/${chat.id}`
              }
              className="flex items-start gap-2 rounded-lg px-2 py-2.5 hover:bg-bg2"
            >
              <span className="mt-0.5">
                <ChatMark mark={markOf(chat)} />
              </span>
              <span className="min-w-0 flex-1">
                <span className="block truncate font-medium">
                  <MarkedWords text={chat.title} words={words} />
                </span>
                <span className="line-clamp-2 text-muted">
                  <MarkedWords text={chat.match?.snippet ?? lineOf(chat)} words={words} />
                </span>
              </span>
              <Ago at={chat.last_activity_at} className="shrink-0 text-small text-muted" />
            </Link>
          </li>
        ))}
      </ul>
      {found.isSuccess && chats.length === 0 && <p className="py-8 text-center text-muted">Nothing matches.</p>}
      {found.hasNextPage && <Button onClick={() => found.fetchNextPage()}>More</Button>}
    </Page>
  );
}

/** The states as choices. A second click on the chosen one removes it. */
function States({ chosen, onChoose }: { chosen: string | undefined; onChoose: (state: string | null) => void }) {
  return (
    <fieldset className="flex flex-wrap items-center gap-1.5">
      <legend className="sr-only">State</legend>
      <span aria-hidden className="text-small text-muted">
        State
      </span>
      {Object.entries(STATES).map(([state, name]) => (
        <Button
          key={state}
          size="small"
          aria-pressed={chosen === state}
          className={cx(chosen === state && "border-accent! text-accent!")}
          onClick={() => onChoose(chosen === state ? null : state)}
        >
          {name}
        </Button>
      ))}
    </fieldset>
  );
}
