"""The catalog of well-known MCP servers: their addresses and the authentication that they take. No network."""

from __future__ import annotations

import msgspec

from rookery.domain.mcp.server import AuthType


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A well-known server. `needs`: what an administrator must enter or prepare besides the address, else empty."""

    slug: str
    name: str
    description: str
    url: str
    auth_type: AuthType
    api_key_header: str | None = None
    needs: str = ""


_OAUTH, _OPEN, _KEY = AuthType.OAUTH2, AuthType.NONE, AuthType.API_KEY

CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        slug="asana",
        name="Asana",
        description="Tasks, projects and goals",
        url="https://mcp.asana.com/sse",
        auth_type=_OAUTH,
    ),
    CatalogEntry(
        slug="atlassian",
        name="Atlassian",
        description="Issues of Jira and pages of Confluence",
        url="https://mcp.atlassian.com/v1/mcp",
        auth_type=_OAUTH,
    ),
    CatalogEntry(
        slug="aws-knowledge",
        name="AWS Knowledge",
        description="Documentation of AWS",
        url="https://knowledge-mcp.global.api.aws",
        auth_type=_OPEN,
    ),
    CatalogEntry(
        slug="cloudflare-docs",
        name="Cloudflare Docs",
        description="Documentation of Cloudflare",
        url="https://docs.mcp.cloudflare.com/mcp",
        auth_type=_OPEN,
    ),
    CatalogEntry(
        slug="context7",
        name="Context7",
        description="Current documentation of libraries",
        url="https://mcp.context7.com/mcp",
        auth_type=_OPEN,
    ),
    CatalogEntry(
        slug="deepwiki",
        name="DeepWiki",
        description="Questions about public repositories",
        url="https://mcp.deepwiki.com/mcp",
        auth_type=_OPEN,
    ),
    CatalogEntry(
        slug="github",
        name="GitHub",
        description="Repositories, issues, pull requests and actions",
        url="https://api.githubcopilot.com/mcp/",
        auth_type=_KEY,
        api_key_header="Authorization",
        needs="A personal access token, as `Bearer TOKEN`. For a login per user, register an OAuth app at GitHub.",
    ),
    CatalogEntry(
        slug="hugging-face",
        name="Hugging Face",
        description="Models, datasets, papers and spaces",
        url="https://huggingface.co/mcp",
        auth_type=_OPEN,
    ),
    CatalogEntry(
        slug="intercom",
        name="Intercom",
        description="Conversations and contacts",
        url="https://mcp.intercom.com/mcp",
        auth_type=_OAUTH,
    ),
    CatalogEntry(
        slug="linear",
        name="Linear",
        description="Issues, projects and comments",
        url="https://mcp.linear.app/mcp",
        auth_type=_OAUTH,
    ),
    CatalogEntry(
        slug="microsoft-learn",
        name="Microsoft Learn",
        description="Documentation of Microsoft",
        url="https://learn.microsoft.com/api/mcp",
        auth_type=_OPEN,
    ),
    CatalogEntry(
        slug="neon",
        name="Neon",
        description="PostgreSQL databases and branches",
        url="https://mcp.neon.tech/mcp",
        auth_type=_OAUTH,
    ),
    CatalogEntry(
        slug="notion",
        name="Notion",
        description="Pages and databases of a workspace",
        url="https://mcp.notion.com/mcp",
        auth_type=_OAUTH,
    ),
    CatalogEntry(
        slug="sentry",
        name="Sentry",
        description="Errors, traces and releases",
        url="https://mcp.sentry.dev/mcp",
        auth_type=_OAUTH,
    ),
    CatalogEntry(
        slug="stripe",
        name="Stripe",
        description="Payments, customers and documentation",
        url="https://mcp.stripe.com",
        auth_type=_OAUTH,
    ),
    CatalogEntry(
        slug="supabase",
        name="Supabase",
        description="Projects, tables and functions",
        url="https://mcp.supabase.com/mcp",
        auth_type=_OAUTH,
    ),
    CatalogEntry(
        slug="vercel",
        name="Vercel",
        description="Projects, deployments and logs",
        url="https://mcp.vercel.com",
        auth_type=_OAUTH,
    ),
)
