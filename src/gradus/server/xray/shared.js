"use strict";
// What the lessons' X-ray and the server's live one draw with: elements, words, colors, legends.

const xray = (() => {
  // Colors of requests: told apart in print and by the color-blind (Okabe and Ito, lightened).
  const COLORS = ["#7cc4ef", "#f2b84b", "#6fc9a6", "#e3a3c8", "#f0e06a", "#a9b6f5", "#f29a76", "#c3cbd2"];

  function make(tag, attributes = {}, ...children) {
    return filled(document.createElement(tag), attributes, children);
  }
  function draw(tag, attributes = {}, ...children) {
    return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  }
  function filled(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "of") element.style.setProperty("--of", value);
      else if (name === "wide") element.style.width = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }
  const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
  const entry = (mark, ...text) => make("span", {}, make("i", { class: mark }), ...text); // one entry of a legend
  const card = (title, part, content, said = "") => make("section", { class: "card", "data-part": part },
    make("h3", {}, title, said ? make("span", { class: "quiet" }, ` ${said}`) : null), content);
  return { COLORS, make, draw, plural, sum, entry, card };
})();
