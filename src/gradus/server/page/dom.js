// -- elements, and what only browsers have ------------------------------------------------------------------------------

// Makes an element. Attributes whose names begin with "on" are listeners; false leaves an attribute out, true sets it bare.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);

function button(text, onclick, attributes = {}) {
  return make("button", { type: "button", ...attributes, onclick }, text);
}

// Says something to screen readers, and shows it for some seconds, unless it can be seen anyway.
function announce(text, shown = true) {
  const place = byId("announced");
  place.classList.toggle("away", !shown);
  place.textContent = text;
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => place.replaceChildren(), 6000);
}

// The clipboard needs https or localhost; elsewhere the old way, by a selection, still works.
async function copyText(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { class: "away", "aria-hidden": "true", tabindex: "-1" });
    area.value = text;
    (from.closest("dialog") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    from.focus();
  }
  announce("Copied");
}

function copyButton(text, label = "Copy") {
  const copy = button(label, () => copyText(text(), copy), { class: "small" });
  return copy;
}

function saveFile(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const duration = (milliseconds) => (milliseconds < 999.5 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(milliseconds < 9950 ? 1 : 0)} s`);
const rate = (value) => (value < 99.95 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
