import type { ComponentType } from "react";
import { createBrowserRouter } from "react-router";
import { ChatPage } from "@/app/chat_page";
import { NewChatPage } from "@/app/new_chat_page";
import { NotFoundPage, RouteError } from "@/app/problem_page";
import { Shell } from "@/app/shell";
import { loadPart } from "@/ui/lazy_part";
import { Guarded } from "./login_guard";

const page = (load: () => Promise<ComponentType>) => async () => ({ Component: await loadPart(load) });

/** All routes of the application. Rarely used pages are loaded when they are opened. */
export const router = createBrowserRouter([
  {
    errorElement: <RouteError />,
    hydrateFallbackElement: <></>,
    children: [
      { path: "/login", lazy: page(async () => (await import("@/features/login/login_page")).LoginPage) },
      { path: "/link", lazy: page(async () => (await import("@/features/login/link_page")).LinkPage) },
      { path: "/setup", lazy: page(async () => (await import("@/features/setup/setup_page")).SetupPage) },
      {
        element: (
          <Guarded>
            <Shell />
          </Guarded>
        ),
        children: [
          {
            errorElement: <RouteError />,
            children: [
              { path: "/", Component: NewChatPage },
              { path: "/c/:id", Component: ChatPage },
              {
                path: "/search",
                lazy: page(async () => (await import("@/features/palette/search_page")).SearchPage),
              },
              {
                path: "/usage",
                lazy: page(async () => (await import("@/features/settings/usage_page")).OwnUsagePage),
              },
              {
                path: "/settings/:page?",
                lazy: page(async () => (await import("@/features/settings/settings_page")).SettingsPage),
              },
              ...(import.meta.env.VITE_GALLERY
                ? [
                    {
                      path: "/gallery",
                      lazy: page(async () => (await import("@/features/gallery/gallery_page")).GalleryPage),
                    },
                  ]
                : []),
              { path: "*", Component: NotFoundPage },
            ],
          },
        ],
      },
    ],
  },
]);
