// -- one answer: streamed, stopped, tried again -------------------------------------------------------------------------

const MOST_ATTEMPTS = 20;
const LEAST_TIMED = 50; // milliseconds from the first token to the last: in less, a rate says nothing

// Fills `message` with the answer to a conversation. `view`, if there is one, shows it: added(kind, text), calls(),
// waits(words), ended(). Only one answer of a conversation runs at a time.
class Answer {
  constructor(request, message) {
    this.request = request;
    this.message = message;
    this.view = null;
    this.control = new AbortController();
  }

  // The server cancels a request whose client leaves.
  stop() {
    this.control.abort();
  }

  async run() {
    for (let attempt = 1; ; attempt += 1) {
      try {
        await this.stream();
        break;
      } catch (error) {
        if (this.control.signal.aborted) this.message.finish = "stopped";
        else if (this.isWorthAnother(error, attempt)) {
          if (await this.wait(error, Math.max(error.retryAfter, attempt))) continue;
          this.message.finish = "stopped";
        } else this.message.error = wordsOf(error);
        break;
      }
    }
    this.view?.ended();
  }

  isWorthAnother(error, attempt) {
    const empty = this.message.content === "" && !this.message.reasoning && !this.message.calls?.length;
    return empty && error instanceof Problem && error.retryAfter !== null && attempt < MOST_ATTEMPTS;
  }

  // Counts down to the next attempt. Returns whether it is to be made.
  async wait(error, left) {
    for (let second = left; second > 0 && !this.control.signal.aborted; second -= 1) {
      this.view?.waits(`${error.message}. Trying again in ${count(second, "second")} …`);
      await Promise.race([wait(1000), new Promise((done) => this.control.signal.addEventListener("abort", done, { once: true }))]);
    }
    this.view?.waits("");
    return !this.control.signal.aborted;
  }

  async stream() {
    this.began = performance.now();
    this.first = this.last = null;
    const { path, body } = this.request;
    const response = await ask(path, { body: JSON.stringify(body), signal: this.control.signal });
    if (!response.ok) throw await problemOf(response);
    let done = false;
    for await (const { data, comments } of eventsOf(response)) {
      for (const words of comments) if (this.first === null && /^[a-z]/i.test(words) && words !== "ping") this.view?.waits(words);
      for (const each of data) {
        if (each === "[DONE]") done = true;
        else this.chunk(JSON.parse(each));
      }
    }
    if (!done) throw new Problem("the connection ended before the answer did", 0);
  }

  chunk({ error, choices, usage }) {
    if (error) throw new Problem(error.message, 200);
    for (const { delta, text: continued, finish_reason: finish } of choices) {
      this.said("reasoning", delta?.reasoning);
      this.said("content", delta?.content ?? continued);
      for (const call of delta?.tool_calls ?? []) this.called(call);
      if (finish) this.message.finish = finish;
    }
    if (usage) this.count(usage);
  }

  said(kind, piece) {
    if (!piece) return;
    this.heard();
    this.message[kind] = (this.message[kind] ?? "") + piece;
    this.view?.added(kind, piece);
  }

  called({ index, id, function: { name, arguments: piece } }) {
    this.heard();
    const calls = (this.message.calls ??= []);
    calls[index] ??= { id, name, arguments: "" };
    calls[index].arguments += piece ?? "";
    this.view?.calls();
  }

  heard() {
    this.last = performance.now();
    if (this.first === null) this.view?.waits("");
    this.first ??= this.last;
  }

  count(usage) {
    this.message.stats = {
      prompt: usage.prompt_tokens,
      cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
      tokens: usage.completion_tokens,
      reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0,
      first: this.first === null ? null : this.first - this.began,
      total: (this.last ?? performance.now()) - this.began,
    };
  }
}

function wordsOf(error) {
  if (error instanceof Problem) return error.status >= 400 ? `${error.message} (status ${error.status})` : error.message;
  return error instanceof TypeError ? "the server does not answer" : String(error.message ?? error);
}

// The line under an answer.
function statsOf({ finish, stats, model }) {
  const said = [];
  if (stats) {
    said.push(count(stats.tokens, "token") + (stats.reasoning ? ` (${stats.reasoning} of reasoning)` : ""));
    const rest = stats.total - stats.first;
    if (rest >= LEAST_TIMED) said.push(`${rate((stats.tokens - 1) / (rest / 1000))} tok/s`);
    if (stats.first !== null) said.push(`${duration(stats.first)} to the first`);
    said.push(`prompt ${stats.prompt.toLocaleString("en")}` + (stats.cached ? ` (${stats.cached.toLocaleString("en")} cached)` : ""));
  }
  const why = { stop: "", length: "cut off by max_tokens or the context", tool_calls: "calls tools", stopped: "stopped" }[finish] ?? finish;
  return [...said, why, model].filter(Boolean).join(" · ");
}
