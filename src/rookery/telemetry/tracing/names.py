"""The names of spans, attributes, events and metrics.

They follow the OpenTelemetry semantic conventions 1.41.0. It is the last release that contains the conventions for
generative AI, which are not stable. Their successors are developed in a separate repository, which has only development
versions. Names that begin with `rookery.` are our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rookery.telemetry.histogram import exponential

CONVENTIONS: Final = "1.41.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{CONVENTIONS}"

# Operations of generative AI. The span of an operation is named `{operation} {object}`.
OPERATION: Final = "gen_ai.operation.name"
CHAT: Final = "chat"
INVOKE_AGENT: Final = "invoke_agent"
EXECUTE_TOOL: Final = "execute_tool"

AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
PROVIDER: Final = "gen_ai.provider.name"
OUTPUT_TYPE: Final = "gen_ai.output.type"
STREAM: Final = "gen_ai.request.stream"
REQUEST_MODEL: Final = "gen_ai.request.model"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
TOP_K: Final = "gen_ai.request.top_k"
FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK_SECONDS: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - a name
# Content, which is exported only if the operator has enabled it.
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"

# HTTP, databases, errors, resources
ERROR_TYPE: Final = "error.type"
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
HTTP_REQUEST_SIZE: Final = "http.request.body.size"
HTTP_RESPONSE_SIZE: Final = "http.response.body.size"
URL_SCHEME: Final = "url.scheme"
URL_TEMPLATE: Final = "url.template"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
DB_SYSTEM: Final = "db.system.name"
DB_OPERATION: Final = "db.operation.name"
DB_COLLECTION: Final = "db.collection.name"
DB_SUMMARY: Final = "db.query.summary"
SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
SERVICE_INSTANCE: Final = "service.instance.id"

# Our own
USER_ID: Final = "rookery.user.id"
REQUEST_ID: Final = "rookery.request.id"
REPLICA_ID: Final = "rookery.replica.id"
CHAT_ID: Final = "rookery.chat.id"
ROOT_CHAT_ID: Final = "rookery.root_chat.id"
TRIGGER_MESSAGE_ID: Final = "rookery.trigger_message.id"
OUTCOME: Final = "rookery.outcome"
DEBUG_RUN_ID: Final = "rookery.debug_run.id"
PURPOSE: Final = "rookery.purpose"
GENERATION_ATTEMPT: Final = "rookery.generation_attempt"
RESULT_BYTES: Final = "rookery.tool.result_bytes"
OMITTED_MESSAGES: Final = "rookery.omitted_messages"
REMOVED: Final = "rookery.job.removed"

# The event of a chat span when the first part of the answer arrives.
FIRST_CHUNK: Final = "first_chunk"

# Metrics, with the bounds that the conventions recommend
TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - a name
TOKEN_BOUNDS: Final = exponential(1, 4, 14)
OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
DURATION_BOUNDS: Final = exponential(0.01, 2, 14)
TIME_TO_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
FIRST_CHUNK_BOUNDS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

CANCELLED: Final = "cancelled"

# The values of `gen_ai.provider.name` for our types of providers. Other types keep their own name.
_PROVIDERS: Final[Mapping[str, str]] = {
    "anthropic": "anthropic",
    "openai": "openai",
    "azure_openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
}


def provider_name(provider_type: str) -> str:
    """Return the name that the conventions give to a type of provider."""
    return _PROVIDERS.get(provider_type, provider_type)
