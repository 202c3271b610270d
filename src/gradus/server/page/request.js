// -- a conversation as a request ----------------------------------------------------------------------------------------

const CHAT = "v1/chat/completions", CONTINUE = "v1/completions"; // from where the page is, which may be below a proxy's path
const CONTINUED = 256; // tokens of a continuation, which need not end by itself

// Returns {path, body} for a conversation's next answer. Raises an Error for settings that are none.
function requestOf({ messages, settings }, model) {
  const stream = { stream: true, stream_options: { include_usage: true } };
  const body = { ...(model ? { model: model.id } : {}), ...stream, ...sampled(settings) };
  if (model?.chat === false) {
    const prompt = messages.map((message) => message.content).join("");
    return { path: CONTINUE, body: { ...body, max_tokens: body.max_tokens ?? CONTINUED, prompt } };
  }
  const tools = toolsOf(settings);
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  body.messages = [...system, ...messages.filter(isSaid).map(sent)];
  return { path: CHAT, body: tools.length ? { ...body, tools } : body };
}

const isSaid = (message) => message.role !== "assistant" || message.content !== "" || message.calls?.length > 0;

function sent({ role, content, reasoning, calls, call }) {
  const message = { role, content };
  if (role === "tool") message.tool_call_id = call;
  if (reasoning) message.reasoning = reasoning;
  if (calls?.length) {
    message.tool_calls = calls.map(({ id, name, arguments: written }) => ({ id, type: "function", function: { name, arguments: written } }));
  }
  return message;
}

// Writes a request as a command for a shell; a key is named by its variable, never shown.
function curlOf({ path, body }) {
  const quoted = (value) => `'${value.replaceAll("'", "'\\''")}'`;
  const key = sessionStorage.getItem(KEY) === null ? [] : ['-H "Authorization: Bearer $GRADUS_API_KEY"'];
  const parts = [`curl -sN ${quoted(new URL(path, location.href).href)}`, ...key, "-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body, null, 1))}`];
  return parts.join(" \\\n  ");
}
