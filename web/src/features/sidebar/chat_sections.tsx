import { ChevronDown, ChevronRight } from "lucide-react";
import { Suspense, useEffect, useMemo, useRef } from "react";
import { useLocation, useParams } from "react-router";
import { useStore } from "zustand";
import { sentence } from "@/api/errors";
import { type Filter, filterCount, filterSearch, NO_FILTER, type Section, sectionsOf } from "@/chat/sidebar_list";
import { ChatRow, currentIn } from "@/features/sidebar/chat_row";
import { useFilter } from "@/features/sidebar/filter_menu";
import { RowMenu } from "@/features/sidebar/row_menu";
import { useChatList } from "@/state/chat_list";
import { layout, setLayout } from "@/state/diff_layout";
import { Button } from "@/ui/button";
import { lazyPart } from "@/ui/lazy_part";
import { useNow } from "@/ui/relative_time";

const FolderList = lazyPart(async () => (await import("@/features/sidebar/folder_list")).FolderList);
const FilterPills = lazyPart(async () => (await import("@/features/sidebar/filter_pills")).FilterPills);

/** The rows of the chat list by section. Loaded rows stay visible if a later request fails. */
export function ChatSections() {
  const [filter, setFilter] = useFilter();
  const list = useChatList(filter);
  // Rendered again at midnight, when the date sections change.
  const now = useNow(60_000);
  const sections = useMemo(() => sectionsOf(list.chats, filter, now), [list.chats, filter, now]);
  return (
    <div className="min-h-0 flex-1 overflow-y-auto px-2 pb-4" aria-busy={list.isPending}>
      {filterCount(filter) > 0 && (
        <Suspense>
          <FilterPills filter={filter} onChange={setFilter} />
        </Suspense>
      )}
      <Suspense>
        <FolderList filter={filter} onChange={setFilter} />
      </Suspense>
      {list.error && (
        <div className="mx-1 mb-2 rounded-lg border border-line bg-bg1 p-2 text-small">
          <p className="text-danger">{sentence(list.error)}</p>
          <Button size="small" className="mt-1.5" onClick={() => list.refetch()}>
            Try again
          </Button>
        </div>
      )}
      {sections.map((section) => (
        <ListSection key={section.id} section={section} />
      ))}
      <RowMenu />
      {list.isSuccess && list.chats.length === 0 && (
        <Empty filter={filter} onClear={() => setFilter({ ...NO_FILTER, group: filter.group })} />
      )}
      {list.hasNextPage && <More isLoading={list.isFetchingNextPage} onMore={() => list.fetchNextPage()} />}
    </div>
  );
}

function ListSection({ section }: { section: Section }) {
  const { id } = useParams();
  const { search } = useLocation();
  const kept = filterSearch(new URLSearchParams(search));
  const closed = useStore(layout, (state) => state.closedSections);
  const isOpen = !closed.includes(section.id);
  const toggle = () =>
    setLayout({ closedSections: isOpen ? [...closed, section.id] : closed.filter((one) => one !== section.id) });
  const Icon = isOpen ? ChevronDown : ChevronRight;
  return (
    <section aria-label={section.title} className="mb-2">
      <button
        type="button"
        aria-expanded={isOpen}
        onClick={toggle}
        className="group flex w-full items-center gap-1 rounded-md px-2 py-1 text-small font-medium text-muted hover:text-text"
      >
        <span className="flex-1 text-left">{section.title}</span>
        <span
          aria-label={section.chats.length === 1 ? "1 chat" : `${section.chats.length} chats`}
          role="img"
          className="font-normal tabular-nums"
        >
          {section.chats.length}
        </span>
        <Icon className="size-3.5" aria-hidden />
      </button>
      {isOpen && (
        <ul>
          {section.chats.map((chat) => (
            <ChatRow key={chat.id} chat={chat} current={currentIn(chat, id)} search={kept} />
          ))}
        </ul>
      )}
    </section>
  );
}

const onlyArchived = (filter: Filter) => filter.archived && filterCount(filter) === 1;

function Empty({ filter, onClear }: { filter: Filter; onClear: () => void }) {
  if (filterCount(filter) === 0) {
    return <p className="px-3 py-8 text-center text-muted">No chats yet. Write a message to start one.</p>;
  }
  return (
    <div className="px-3 py-8 text-center text-muted">
      <p>{onlyArchived(filter) ? "The archive is empty." : "No chat matches the filters."}</p>
      <Button size="small" className="mt-2" onClick={onClear}>
        Show all chats
      </Button>
    </div>
  );
}

/** Loads the next page when it is scrolled into view, or when it is clicked. */
function More({ isLoading, onMore }: { isLoading: boolean; onMore: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!box.current || isLoading) return;
    const observer = new IntersectionObserver((entries) => entries.some((one) => one.isIntersecting) && onMore());
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [isLoading, onMore]);
  return (
    <div ref={box} className="flex justify-center py-2">
      <Button size="small" kind="ghost" disabled={isLoading} onClick={onMore}>
        {isLoading ? "Loading" : "More"}
      </Button>
    </div>
  );
}
