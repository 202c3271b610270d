"""The chat, in a browser against real servers: a scripted engine that says what is asked for, and a tiny model."""

import json
import re
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from gradus.server.http.keys import VARIABLE
from tests.server.conftest import ROOT, eventually, running
from tests.server.dialogue import ANSWERS, TOOLS, Answering, asked
from tests.server.saying import SayingCore
from tests.server.scripted import ScriptedCore

READY = "document.querySelector('#state').dataset.state === 'ready' && !document.querySelector('#model').disabled"
IDLE = "document.querySelector('#stop').hidden"
KEY = "a-key-of-my-own-choice"
SLOW = "word " * 500


@pytest.fixture(scope="module")
def server():
    with running(lambda: Answering(step_s=0.004)) as server:
        yield server


@contextmanager
def opened(browser, server, **options):
    with browser.tab(server.url, **options) as tab:
        tab.wait(READY)
        yield tab


def say(tab, text, wait=True):
    """Send a message, and wait for the answer's end."""
    tab.write("#text", text)
    tab.press("Enter")
    if wait:
        tab.wait(f"{IDLE} && document.querySelectorAll('.message.assistant').length > 0")


def bodies(tab, role):
    """The texts of a role's messages, as they are shown."""
    return tab.run(f"[...document.querySelectorAll('.message.{role} > .body')].map((each) => each.innerText.trim())")


def last(tab, selector):
    return tab.run(f"[...document.querySelectorAll('.message.assistant {selector}')].at(-1)?.innerText ?? ''")


def stored(tab):
    """Read the conversations that the page has stored, the newest first."""
    written = tab.run("Object.entries(localStorage).filter(([name]) => name !== 'gradus.beside')")
    assert all(name.startswith("gradus.conversation.") for name, _ in written)
    return sorted((json.loads(text) for _, text in written), key=lambda each: -each["updated"])


# -- a conversation ----------------------------------------------------------------------------------------------------


def test_an_answer_is_streamed_counted_and_still_there_after_a_reload(browser, server):
    with opened(browser, server) as tab:
        say(tab, asked("plain"))
        assert bodies(tab, "user") == [asked("plain")] and bodies(tab, "assistant") == [ANSWERS["plain"]]
        assert re.fullmatch(r"28 tokens · [\d.,]+ tok/s · \d+ ms to the first · prompt \d+", last(tab, ".stats"))
        [kept] = stored(tab)
        assert kept["title"] == asked("plain") and kept["messages"][1]["content"] == ANSWERS["plain"]
        tab.reload()
        tab.wait(READY)
        assert bodies(tab, "assistant") == [ANSWERS["plain"]] and "28 tokens" in last(tab, ".stats")
        say(tab, asked("json"))
        assert bodies(tab, "assistant") == [ANSWERS["plain"], ANSWERS["json"]]
        prompt = server.engine.prompts[-1]
        assert prompt.count("<|im_start|>assistant") == 2 and ANSWERS["plain"] in prompt


def test_nothing_but_the_conversation_is_sent(browser, server):
    with opened(browser, server) as tab:
        say(tab, asked("plain"))
        sent = {(method, address.removeprefix(server.url)) for method, address in tab.requests()}
        reports = {("GET", path) for path in ("/", "/health", "/v1/models", "/xray")}
        assert sent == reports | {("POST", "/v1/chat/completions")}


def test_shift_and_enter_begin_a_line(browser, server):
    with opened(browser, server) as tab:
        tab.write("#text", "one")
        tab.press("Enter", modifiers=8)
        tab.call("Input.insertText", text=asked("plain"))
        assert bodies(tab, "user") == []
        say_by_button(tab)
        assert bodies(tab, "user") == [f"one\n{asked('plain')}"]


def say_by_button(tab):
    tab.click("#send")
    tab.wait(f"{IDLE} && document.querySelectorAll('.message.assistant').length > 0")


def test_settings_reach_the_request_and_the_curl_command(browser, server):
    with opened(browser, server) as tab:
        assert tab.run("document.querySelector('#temperature').placeholder") == "1"
        assert tab.run("document.querySelector('#max_tokens').placeholder") == "room in 4,096"
        for name, value in {
            "system": "Be brief.",
            "temperature": "0,5",
            "top_k": "40",
            "max_tokens": "7",
            "seed": "3",
        }.items():
            tab.write(f"#{name}", value)
        say(tab, asked("plain"))
        params = server.engine.requests[-1].params
        assert (params.temperature, params.top_k, params.max_tokens, params.seed) == (0.5, 40, 7, 3)
        assert "<|im_start|>system\nBe brief." in server.engine.prompts[-1]
        assert "cut off by max_tokens" in last(tab, ".stats")
        tab.write("#text", "it's")
        tab.click("#curl")
        command = tab.text("#command")
        assert command.startswith(f"curl -sN '{server.url}/v1/chat/completions'") and "it'\\''s" in command
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20)
        assert done.stdout.endswith("data: [DONE]\n\n") and server.engine.requests[-1].params.seed == 3
        tab.click("#curl-row [data-close]")
        tab.write("#top_p", "0.9")
        tab.run("document.activeElement.blur()")
        tab.reload()
        tab.wait(READY)
        assert tab.run("document.querySelector('#system').value") == "Be brief."
        assert "temperature 0,5 · top_p 0.9 · top_k 40 · max_tokens 7 · seed 3" in tab.text("#set")


WRONG = {
    "warm": ("temperature", "temperature must be a number"),
    "[{": ("tools", "Tools are not JSON"),
    '[{"a": 1}]': ("tools", "needs a name"),
}


@pytest.mark.parametrize("value", WRONG)
def test_a_setting_that_is_none_is_said_and_nothing_is_sent(browser, server, value):
    field, says = WRONG[value]
    with opened(browser, server) as tab:
        tab.write(f"#{field}", value)
        assert says in tab.text("#set")
        tab.write("#text", "x")
        tab.press("Enter")
        assert says in tab.text("#announced") and tab.run("document.querySelector('#settings').open")
        assert bodies(tab, "user") == [] and tab.run("document.querySelector('#text').value") == "x"


def test_a_message_is_edited_and_an_answer_made_again(browser, server):
    with opened(browser, server) as tab:
        say(tab, asked("plain"))
        say(tab, asked("json"))
        tab.run("document.querySelector('.message.user .tools button:nth-child(2)').click()")
        assert tab.run("document.activeElement.value") == asked("plain")
        tab.press("Escape")
        assert bodies(tab, "user") == [asked("plain"), asked("json")]
        tab.run("document.querySelector('.message.user .tools button:nth-child(2)').click()")
        tab.write(".editing textarea", asked("lines"))
        tab.press("Enter")
        tab.wait(f"{IDLE} && document.querySelectorAll('.message').length === 2")
        assert bodies(tab, "user") == [asked("lines")]
        before = len(server.engine.prompts)
        tab.run("document.querySelector('.message.assistant .tools button:nth-child(2)').click()")
        tab.wait(f"{IDLE} && document.querySelector('.message.assistant .stats').innerText !== ''")
        assert len(server.engine.prompts) == before + 1 and server.engine.prompts[-1] == server.engine.prompts[-2]
        assert len(stored(tab)[0]["messages"]) == 2


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["button", "key", "leaving"])
def test_stopping_cancels_the_request_in_the_engine(browser, how):
    with running(lambda: SayingCore(SLOW, step_s=0.01)) as server, opened(browser, server) as tab:
        say(tab, "x", wait=False)
        tab.wait("document.querySelector('.message.assistant > .body').innerText.length > 20")
        assert tab.run("document.querySelector('#send').hidden")
        if how == "button":
            tab.click("#stop")
        elif how == "key":
            tab.press("Escape")
        else:
            tab.call("Page.navigate", url="about:blank")
        assert eventually(lambda: server.engine.cancelled)
        assert eventually(server.idle) and 0 < server.engine.totals.generated_tokens < len(SLOW)
        if how == "leaving":
            tab.go(server.url)
        tab.wait(f"{READY} && {IDLE}")
        tab.wait("document.querySelector('.message.assistant .stats').innerText === 'stopped'")
        said = bodies(tab, "assistant")
        assert said[0].startswith("word word")
        tab.reload()
        tab.wait(READY)
        assert bodies(tab, "assistant") == said


def test_another_conversation_can_be_read_while_one_is_answered(browser):
    with running(lambda: SayingCore("word " * 60, step_s=0.01)) as server, opened(browser, server) as tab:
        say(tab, "first", wait=False)
        tab.wait("document.querySelector('.message.assistant > .body').innerText.length > 20")
        tab.click("#new")
        assert bodies(tab, "user") == [] and tab.run(IDLE)
        tab.wait("[...document.querySelectorAll('#conversations .open')].length === 1")
        tab.click("#conversations .open")
        tab.wait(f"{IDLE} && document.querySelector('.message.assistant .stats').innerText !== ''")
        assert bodies(tab, "assistant") == [("word " * 60).strip()]


# -- reasoning and tools -----------------------------------------------------------------------------------------------


def test_reasoning_is_folded_and_not_part_of_the_answer(browser, server):
    with opened(browser, server) as tab:
        say(tab, asked("think"))
        assert bodies(tab, "assistant") == ["On the Danube."]
        assert tab.run("document.querySelector('.assistant .thoughts').open") is False
        assert tab.run("document.querySelector('.assistant .thoughts .body').textContent.trim()") == "Where is Ulm?"
        assert "of reasoning" in last(tab, ".stats")


def test_a_call_is_shown_and_answered_by_hand(browser, server):
    with opened(browser, server) as tab:
        tab.write("#tools", json.dumps([tool["function"] for tool in TOOLS]))
        say(tab, asked("two_calls"))
        shown = tab.run("[...document.querySelectorAll('.called .code')].map((each) => each.innerText)")
        assert [each.split("\n")[0] for each in shown] == ["calls look_up", "calls clock"]
        assert json.loads(shown[0].split("\n", 1)[1]) == {"place": "Ulm", "days": [1, 2]}
        assert "calls tools" in last(tab, ".stats")
        tab.write(".called .code:nth-child(1) textarea", "Ulm is on the Danube.")
        tab.write(".called .code:nth-child(2) textarea", asked("json"))
        tab.click(".called > button")
        tab.wait(f"{IDLE} && document.querySelectorAll('.message').length === 5")
        assert bodies(tab, "assistant")[1] == ANSWERS["json"]
        assert bodies(tab, "tool") == ["Ulm is on the Danube.", asked("json")]
        assert "Ulm is on the Danube." in server.engine.prompts[-1] and "look_up" in server.engine.prompts[-1]
        assert tab.run("document.querySelectorAll('.called textarea').length") == 0
        [kept] = stored(tab)
        [call, _] = kept["messages"][1]["calls"]
        assert kept["messages"][2]["call"] == call["id"] and len(call["id"]) == 9


# -- a model without a chat template -----------------------------------------------------------------------------------


def test_a_model_without_a_template_continues_texts(browser):
    with running(lambda: ScriptedCore(context_length=4096)) as server, opened(browser, server) as tab:
        assert (
            "no chat template" in tab.text(".welcome")
            and tab.run("document.querySelector('#text').placeholder") == "Text to continue"
        )
        tab.write("#max_tokens", "5")
        say(tab, "*Once*")
        assert bodies(tab, "assistant") == ["0 1 2 3 4"] and bodies(tab, "user") == ["*Once*"]
        say(tab, "again ")
        assert stored(tab)[0]["messages"][3]["content"] == "0 1 2 3 4 "
        assert "prompt 22" in last(tab, ".stats"), "6 + 10 + 6 characters: all that is there is continued"


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_is_shown_in_the_server_s_words(browser, server):
    with opened(browser, server) as tab:
        tab.write("#top_p", "9")
        say(tab, asked("plain"))
        wanted = server.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}], "top_p": 9}
        ).json()
        assert last(tab, ".wrong") == f"{wanted['error']['message']} (status 400)"
        tab.write("#top_p", "")
        tab.run("document.querySelector('.message.assistant .tools button:nth-child(2)').click()")
        tab.wait(f"{IDLE} && document.querySelector('.message.assistant .stats').innerText !== ''")
        assert bodies(tab, "assistant") == [ANSWERS["plain"]] and last(tab, ".wrong") == ""


def test_an_answer_that_breaks_keeps_what_has_come(browser, server):
    with opened(browser, server) as tab:
        say(tab, asked("breaks"))
        assert bodies(tab, "assistant") == ["Half an ans"] and "could not finish" in last(tab, ".wrong")
        assert "secret detail" not in tab.text("body")


def test_a_full_server_is_asked_again_when_it_says(browser):
    with (
        running(lambda: SayingCore("Hello.", step_s=0.2, slots=1), max_waiting=1) as server,
        opened(browser, server) as tab,
    ):
        held = [server.send(json.dumps({"prompt": "a", "max_tokens": 12}).encode()) for _ in range(3)]
        assert eventually(lambda: server.client.waiting >= 1)
        say(tab, "x", wait=False)
        tab.wait("/Trying again in \\d+ second/.test(document.querySelector('.message.assistant .waits').innerText)")
        assert "wait" in last(tab, ".waits")
        tab.wait(f"{IDLE} && document.querySelector('.message.assistant .stats').innerText !== ''", 30)
        assert bodies(tab, "assistant") == ["Hello."] and last(tab, ".wrong") == last(tab, ".waits") == ""
        for each in held:
            each.close()


def test_waiting_for_another_attempt_can_be_stopped(browser):
    with (
        running(lambda: SayingCore("Hello.", step_s=0.2, slots=1), max_waiting=1) as server,
        opened(browser, server) as tab,
    ):
        held = [server.send(json.dumps({"prompt": "a", "max_tokens": 400}).encode()) for _ in range(3)]
        assert eventually(lambda: server.client.waiting >= 1)
        say(tab, "x", wait=False)
        tab.wait("/Trying again/.test(document.querySelector('.message.assistant .waits').innerText)")
        tab.press("Escape")
        tab.wait(IDLE)
        tab.wait("document.querySelector('.message.assistant .stats').innerText === 'stopped'")
        for each in held:
            each.close()


def test_a_server_that_loads_says_so_and_then_answers(browser):
    gate = threading.Event()

    def late():
        gate.wait(60)
        return Answering()

    found = {}
    thread = threading.Thread(target=_serve_late, args=(late, found, gate))
    thread.start()
    try:
        assert eventually(lambda: "url" in found)
        with browser.tab(found["url"]) as tab:
            tab.wait("document.querySelector('#state').dataset.state === 'loading'")
            assert tab.text("#state") == "loading · the model is loading"
            say(tab, asked("plain"), wait=False)
            tab.wait("/loading. Trying again in/.test(document.querySelector('.message.assistant .waits').innerText)")
            gate.set()
            tab.wait(f"{READY} && {IDLE}", 30)
            assert bodies(tab, "assistant") == [ANSWERS["plain"]]
    finally:
        gate.set()
        found["stop"].set()
        thread.join(30)


def _serve_late(make, found, gate):
    """A server whose address is known while it loads."""
    from gradus.server.client import EngineClient
    from gradus.server.config import ServerConfig
    from gradus.server.engine.thread import EngineThread
    from gradus.server.serve import Server, bind
    from tests.server.scripted import register

    config = ServerConfig(model=register(make), port=0)
    server, listening = Server(config, EngineClient(config, "tests.server.scripted", EngineThread)), bind(config)
    found["stop"] = threading.Event()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    found["url"] = f"http://127.0.0.1:{listening.getsockname()[1]}"
    found["stop"].wait(90)
    server.should_exit = True
    thread.join(20)


def test_a_server_that_is_gone_is_named(browser):
    with running(Answering) as server, opened(browser, server) as tab:
        server.server.should_exit = True
        assert eventually(lambda: not server.server.started or server.client.stopped, 20)
        say(tab, asked("plain"))
        assert last(tab, ".wrong") in ("the server does not answer", "the server is shutting down (status 503)")


def test_it_works_by_a_proxy_s_name_and_copies_without_https(browser):
    address = "http://gradus.example.org:{}/"
    with (
        running(Answering, allowed_hosts=["gradus.example.org"]) as server,
        browser.tab(address.format(server.port)) as tab,
    ):
        tab.wait(READY)
        assert not tab.run("isSecureContext")
        say(tab, asked("plain"))
        assert bodies(tab, "assistant") == [ANSWERS["plain"]]
        tab.run("document.addEventListener('copy', () => (globalThis.copied = document.activeElement.value))")
        tab.click(".message.assistant .tools button")
        tab.wait("document.querySelector('#announced').innerText === 'Copied'")
        assert tab.run("copied") == ANSWERS["plain"]


def test_a_load_s_progress_and_several_models_are_shown(browser, server):
    health = {"status": "loading", "reason": "the model is loading"}
    health["progress"] = {"stage": "weights", "done": 40, "total": 98, "seconds": 12.3}
    models = [{"id": "a", "state": "ready", "chat": True}, {"id": "b", "state": "asleep"}]
    answers = {"health": health, "v1/models": {"data": models}}
    fake = f"""
    const real = globalThis.fetch;
    globalThis.answers = {json.dumps(answers)};
    globalThis.fetch = async (path, options) =>
      path in answers ? new Response(JSON.stringify(answers[path])) : real(path, options);
    """
    with browser.tab(server.url, before=fake) as tab:
        tab.wait("document.querySelector('#state').innerText !== ''")
        assert tab.text("#state") == "loading · the model is loading · weights 40 % (12 s)"
        tab.run("answers.health = {status: 'asleep', reason: 'asleep'}, 0")
        tab.wait("document.querySelector('#model').options.length === 2")
        assert tab.run("[...document.querySelector('#model').options].map((each) => each.text)") == ["a", "b (asleep)"]
        tab.run("const it = document.querySelector('#model'); it.value = 'b'; it.dispatchEvent(new Event('change'))")
        say(tab, asked("plain"))
        assert stored(tab)[0]["messages"][1]["model"] == "b" and last(tab, ".stats").endswith("· b")


# -- the key -----------------------------------------------------------------------------------------------------------


def test_a_key_is_asked_for_kept_for_the_tab_and_never_in_an_address(browser, monkeypatch):
    monkeypatch.setenv(VARIABLE, KEY)
    with running(Answering) as server, browser.tab(server.url) as tab:
        tab.wait("document.querySelector('#key-dialog').open")
        assert "an API key is needed" in tab.text("#key-why")
        tab.write("#key", "wrong")
        tab.press("Enter")
        tab.wait("/not valid/.test(document.querySelector('#key-why').innerText)")
        tab.write("#key", KEY)
        tab.press("Enter")
        tab.wait(READY)
        say(tab, asked("plain"))
        assert bodies(tab, "assistant") == [ANSWERS["plain"]]
        assert all(KEY not in address for _, address in tab.requests())
        assert KEY not in json.dumps(tab.run("Object.entries(localStorage)")) and KEY not in tab.run(
            "document.documentElement.outerHTML"
        )
        tab.click("#curl")
        assert KEY not in tab.text("#command") and '-H "Authorization: Bearer $GRADUS_API_KEY"' in tab.text("#command")
        tab.click("[data-close]:not(#key-dialog *)")
        tab.reload()
        tab.wait(READY)
        say(tab, asked("json"))
        assert bodies(tab, "assistant")[1] == ANSWERS["json"]
        tab.click("#keys")
        tab.press("Enter")  # nothing entered: the key is forgotten
        tab.wait("sessionStorage.length === 0 && document.querySelector('#key-dialog').open")


def test_without_a_key_the_page_asks_once_and_again_when_something_is_sent(browser, monkeypatch):
    monkeypatch.setenv(VARIABLE, KEY)
    with running(Answering) as server, browser.tab(server.url) as tab:
        tab.wait("document.querySelector('#key-dialog').open")
        tab.press("Escape")
        tab.wait(
            "!document.querySelector('#key-dialog').open && /API key/.test(document.querySelector('#state').innerText)"
        )
        tab.write("#text", asked("plain"))
        tab.press("Enter")
        tab.wait("document.querySelector('#key-dialog').open")
        tab.press("Escape")
        tab.wait(IDLE)
        assert "an API key is needed" in last(tab, ".wrong") and "(status 401)" in last(tab, ".wrong")


# -- history -----------------------------------------------------------------------------------------------------------


def test_conversations_are_listed_deleted_exported_and_imported(browser, server):
    catch = """
    globalThis.saved = [];
    URL.createObjectURL = (blob) => { blob.text().then((text) => saved.push(text)); return "#"; };
    """
    with opened(browser, server, before=catch) as tab:
        say(tab, asked("plain"))
        tab.click("#new")
        say(tab, asked("json"))
        titles = "[...document.querySelectorAll('#conversations .open')].map((each) => each.innerText)"
        assert tab.run(titles) == [asked("json"), asked("plain")]
        tab.click("#export")
        exported = tab.wait("saved[0]")
        assert [each["title"] for each in json.loads(exported)["conversations"]] == [asked("json"), asked("plain")]
        tab.click("#conversations li .small")
        assert tab.run(titles) == [asked("plain")] and bodies(tab, "user") == [asked("plain")]
        import_text(tab, exported)
        tab.wait("document.querySelectorAll('#conversations .open').length === 3")
        assert sorted(tab.run(titles)) == [asked("json"), asked("plain"), asked("plain")]
        import_text(tab, '{"format": "another"}')
        tab.wait(
            "/Not imported: the file is no export of this page/.test(document.querySelector('#announced').innerText)"
        )
        tab.run("globalThis.confirm = () => true, document.querySelector('#clear').click()")
        assert stored(tab) == [] and tab.run(titles) == []


def import_text(tab, text):
    tab.run(f"""(() => {{
      const files = new DataTransfer();
      files.items.add(new File([{json.dumps(text)}], "x.json"));
      const input = document.querySelector("#file");
      input.files = files.files;
      input.dispatchEvent(new Event("change"));
    }})()""")


def test_a_hostile_file_becomes_text_or_nothing(browser, server):
    evil = "<img src=x onerror=globalThis.hurt=1>"
    calls = [{"name": evil, "arguments": 7}, None]
    odd = {"reasoning": evil, "calls": calls, "stats": {"tokens": evil}, "finish": evil, "error": evil}
    messages = [{"role": evil, "content": "x"}, None, 7, {"role": "user", "content": {"a": 1}}]
    messages.append({"role": "assistant", "content": evil, **odd})
    settings = {"system": {"a": 1}, "temperature": [1]}
    conversation = {"id": evil, "title": evil, "settings": settings, "updated": "never", "messages": messages}
    with opened(browser, server) as tab:
        import_text(
            tab,
            json.dumps({"format": "gradus-conversations", "conversations": [conversation, None, 7, {"messages": 7}]}),
        )
        tab.wait("document.querySelectorAll('#conversations .open').length === 1")
        tab.click("#conversations .open")
        assert bodies(tab, "assistant") == [evil] and tab.run("document.images.length") == 0
        assert tab.run("globalThis.hurt ?? null") is None


def test_the_storage_is_bounded_and_the_oldest_conversations_go_first(browser, server):
    fill = """
    for (let at = 0; location.protocol === "http:" && at < 9; at += 1) {
      const messages = [{ role: "user", content: "x".repeat(300000) }];
      const old = { id: `old${at}`, title: `old ${at}`, updated: at, messages };
      localStorage.setItem(`gradus.conversation.old${at}`, JSON.stringify(old));
    }
    """
    with opened(browser, server, before=fill) as tab:
        tab.click("#new")
        say(tab, asked("plain"))
        assert [each["title"] for each in stored(tab)] == [asked("plain"), *(f"old {at}" for at in range(8, 2, -1))]


def test_a_storage_that_refuses_is_said_and_the_chat_goes_on(browser, server):
    with opened(
        browser,
        server,
        before="Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };",
    ) as tab:
        say(tab, asked("plain"))
        assert "too large for the browser's storage" in tab.text("#unsaved")
        assert bodies(tab, "assistant") == [ANSWERS["plain"]]


# -- what models say is text -------------------------------------------------------------------------------------------


def test_no_answer_title_or_call_becomes_an_element(browser):
    evil = "<script>globalThis.hurt=1</script><img src=x onerror=globalThis.hurt=1>[a](javascript:globalThis.hurt=1)"
    with running(lambda: SayingCore(evil)) as server, opened(browser, server) as tab:
        say(tab, evil)
        assert bodies(tab, "assistant") == bodies(tab, "user") == [evil]
        assert tab.run("document.images.length + document.querySelectorAll('main a').length") == 0
        assert tab.run("globalThis.hurt ?? null") is None and tab.text("#conversations .open").startswith("<script>")


def test_the_browser_enforces_the_policy(browser, server):
    with opened(browser, server) as tab:
        tab.run("""
        globalThis.broken = [];
        document.addEventListener("securitypolicyviolation", (event) => broken.push(event.effectiveDirective));
        const put = (tag, attributes) => {
          const element = document.createElement(tag);
          for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
          document.body.append(element);
        };
        try { document.body.innerHTML = "<b>parsed</b>"; } catch { /* as it should */ }
        const script = document.createElement("script");
        script.append("globalThis.hurt = 1");
        document.body.append(script);
        put("p", { style: "color: red" });
        put("iframe", { src: "/" });
        put("img", { src: "/picture.png" });
        put("link", { rel: "stylesheet", href: "/style.css" });
        fetch("http://127.0.0.1:1/").catch(() => {});
        """)
        wanted = [
            "connect-src",
            "frame-src",
            "img-src",
            "require-trusted-types-for",
            "style-src-attr",
            "style-src-elem",
        ]
        tab.wait("broken.includes('connect-src') && broken.includes('frame-src') && broken.includes('img-src')")
        assert sorted(set(tab.run("broken"))) == wanted
        assert tab.run("globalThis.hurt ?? null") is None and tab.text("b") is None
        browser.events.clear()  # these errors are wanted


def test_a_long_answer_with_code_and_a_table_is_drawn(browser):
    answer = (
        "# Title\n\nText with **bold**.\n\n```python\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
        + "\n- item" * 200
    )
    with running(lambda: SayingCore(answer, size=7)) as server, opened(browser, server) as tab:
        say(tab, "x")
        counted = "document.querySelectorAll(`.message .body ${tag}`).length"
        assert tab.run(f"['h3', 'strong', 'pre', 'td', 'li'].map((tag) => {counted})") == [1, 1, 1, 2, 200]
        unseen = "(({ scrollTop, scrollHeight, clientHeight }) => scrollHeight - clientHeight - scrollTop)"
        assert tab.run(f"{unseen}(document.querySelector('#messages'))") < 3
        assert stored(tab)[0]["messages"][1]["content"] == answer


# -- layout ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 390, 760, 1280, 1600])
def test_nothing_is_wider_than_the_window(browser, server, width):
    with opened(browser, server, width=width) as tab:
        say(tab, asked("talk_and_call"))
        tab.click("#settings summary")
        assert tab.run("document.documentElement.scrollWidth <= innerWidth")
        parts = "[...document.querySelectorAll('main > section')]"
        shown = f"{parts}.filter((each) => each.offsetParent !== null).map((each) => each.id)"
        assert tab.run(shown) == [*(["list"] if width > 760 else []), "chat", *(["xray"] if width >= 1200 else [])]
        if width < 1200:
            tab.click("[data-show=xray]")
            assert tab.run(shown) == [*(["list"] if width > 760 else []), "xray"]
            assert tab.run("document.documentElement.scrollWidth <= innerWidth")
        if width <= 760:
            tab.click("[data-show=list]")
            assert tab.run(shown) == ["list"] and tab.run("document.documentElement.scrollWidth <= innerWidth")


def watchers(server, number):
    """Wait until this number of clients watches the engine."""
    return eventually(lambda: len(server.client.watchers._watchers) == number)


def test_the_engine_is_watched_only_while_the_x_ray_shows(browser, server):
    with opened(browser, server, width=1600) as tab:
        tab.wait("document.querySelector('#xray .said')?.dataset.state === 'ready'")
        assert watchers(server, 1)
        tab.click("#beside")
        assert watchers(server, 0) and tab.text("#xray") == ""
        tab.reload()
        tab.wait(READY)
        assert watchers(server, 0) and tab.run("document.querySelector('#beside').ariaPressed") == "false"
        tab.click("#beside")
        assert watchers(server, 1)
        tab.size(700, 800)
        assert watchers(server, 0)
        tab.click("[data-show=xray]")
        assert watchers(server, 1)
    assert watchers(server, 0)


def test_every_field_and_button_has_a_name(browser, server):
    nameless = """[...document.querySelectorAll("button, input, select, textarea, summary")].filter((each) =>
      !(each.labels?.length || each.getAttribute("aria-label") || each.textContent.trim()))
      .map((each) => each.outerHTML)"""
    with opened(browser, server) as tab:
        tab.write("#tools", json.dumps([tool["function"] for tool in TOOLS]))
        say(tab, asked("two_calls"))
        assert tab.run(nameless) == []


# -- a real model ------------------------------------------------------------------------------------------------------


def test_a_real_server_with_a_tiny_model_is_used_from_its_page(browser):
    command = [
        sys.executable,
        "-m",
        "gradus",
        "serve",
        "--model",
        "random:tiny-llama",
        "--device",
        "cpu",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            line = process.stdout.readline()
            url = re.search(r"· page: (\S+)", line)[1]
            with browser.tab(url) as tab:
                tab.wait(READY)
                tab.write("#max_tokens", "12")
                say(tab, "Once upon a time")
                assert last(tab, ".wrong") == "" and re.match(r"([1-9]|1[0-2]) tokens?\b", last(tab, ".stats"))
        finally:
            process.terminate()
            process.wait(30)
