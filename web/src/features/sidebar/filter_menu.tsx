import { ListFilter } from "lucide-react";
import { useMemo } from "react";
import { useLocation, useSearchParams } from "react-router";
import { type Filter, filterCount, filterFrom, NO_FILTER, withFilter } from "@/chat/sidebar_list";
import { IconButton } from "@/ui/button";
import { cx } from "@/ui/cx";
import { Menu } from "@/ui/menu";

/** Return the filter of the list, which is stored in the URL, and a function to change it. */
export function useFilter(): [Filter, (change: Partial<Filter>) => void] {
  const [params, setParams] = useSearchParams();
  const filter = useMemo(() => filterFrom(params), [params]);
  // On a small screen, the state says that the list is open. It stays open.
  const { state } = useLocation();
  const set = (change: Partial<Filter>) =>
    setParams(withFilter(params, { ...filter, ...change }), { replace: true, state });
  return [filter, set];
}

/** The menu for the filter and the grouping of the list. */
export function FilterMenu() {
  const [filter, set] = useFilter();
  const count = filterCount(filter);
  return (
    <Menu
      align="end"
      label="Filter chats"
      trigger={
        <IconButton
          label={count > 0 ? `Filter chats, ${count} active` : "Filter chats"}
          className={cx(count > 0 && "text-accent")}
        >
          <ListFilter />
        </IconButton>
      }
      items={[
        { label: "All chats", checked: filter.source === "all", onSelect: () => set({ source: "all" }) },
        { label: "Mine", checked: filter.source === "mine", onSelect: () => set({ source: "mine" }) },
        { label: "Shared with me", checked: filter.source === "shared", onSelect: () => set({ source: "shared" }) },
        "separator",
        { label: "Unread only", checked: filter.unread, onSelect: () => set({ unread: !filter.unread }) },
        { label: "Archived", checked: filter.archived, onSelect: () => set({ archived: !filter.archived }) },
        "separator",
        { label: "Group by date", checked: filter.group === "date", onSelect: () => set({ group: "date" }) },
        { label: "Group by status", checked: filter.group === "status", onSelect: () => set({ group: "status" }) },
        ...(count > 0
          ? ([
              "separator",
              { label: "Clear filters", onSelect: () => set({ ...NO_FILTER, group: filter.group }) },
            ] as const)
          : []),
      ]}
    />
  );
}
