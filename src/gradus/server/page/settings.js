// -- the form: system text, sampling, tools -----------------------------------------------------------------------------

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const TEXTS = ["system", "tools"];

// Settings as they were typed, all of them texts; the server says what a number may be.
function readSettings(from) {
  return Object.fromEntries([...TEXTS, ...NUMBERS].map((name) => [name, textOf(from?.[name], 200_000)]));
}

// Returns the fields of a request that settings give. Raises an Error that names the setting.
function sampled(settings) {
  const given = NUMBERS.filter((name) => settings[name].trim() !== "");
  return Object.fromEntries(given.map((name) => {
    const value = Number(settings[name].trim().replace(",", "."));
    if (!Number.isFinite(value)) throw new Error(`${name} must be a number, got ${settings[name].trim().slice(0, 40)}`);
    return [name, value];
  }));
}

// Reads tools: functions, bare or as {"type": "function", "function": …}. Raises an Error that says what is wrong.
function toolsOf(settings) {
  if (settings.tools.trim() === "") return [];
  let found;
  try {
    found = JSON.parse(settings.tools);
  } catch (error) {
    throw new Error(`Tools are not JSON: ${error.message}`);
  }
  const list = Array.isArray(found) ? found : [found];
  for (const tool of list) {
    if (typeof (tool?.function ?? tool)?.name !== "string") throw new Error("Tools: each function needs a name");
  }
  return list.map((tool) => (tool.function ? { type: "function", ...tool } : { type: "function", function: tool }));
}

const form = {
  // changed: gets the settings at each keystroke. entered: called when a field is left.
  start(changed, entered) {
    for (const name of [...TEXTS, ...NUMBERS]) {
      byId(name).addEventListener("change", entered);
      byId(name).addEventListener("input", () => {
        this.check();
        changed(this.read());
      });
    }
  },
  read() {
    return readSettings(Object.fromEntries([...TEXTS, ...NUMBERS].map((name) => [name, byId(name).value])));
  },
  show(settings) {
    for (const name of [...TEXTS, ...NUMBERS]) byId(name).value = settings[name];
    this.check();
  },

  // Says what is wrong, and in the closed form's line what is set.
  check() {
    const settings = this.read();
    let wrong = "";
    try {
      sampled(settings);
      toolsOf(settings);
    } catch (error) {
      wrong = error.message;
    }
    byId("wrong").textContent = wrong;
    const set = NUMBERS.filter((name) => settings[name].trim()).map((name) => `${name} ${settings[name].trim()}`);
    const said = [settings.system.trim() && "system text", ...set, settings.tools.trim() && "tools"].filter(Boolean);
    byId("set").textContent = wrong ? ` · ${wrong}` : said.length ? ` · ${said.join(" · ")}` : "";
  },

  // Shows the model's own values where nothing is typed.
  suit(model) {
    const stock = model?.default_sampling ?? {};
    const own = { temperature: 1, top_p: 1, top_k: "off", ...stock };
    for (const name of ["temperature", "top_p", "top_k"]) byId(name).placeholder = String(own[name] === 0 && name === "top_k" ? "off" : own[name]);
    byId("max_tokens").placeholder = model?.max_model_len ? `room in ${model.max_model_len.toLocaleString("en")}` : "";
  },
};
