// What the page draws: elements, words and numbers, bars, matrices, the line of sizes, questions. Data goes in as text only.

/** @typedef {import("./service.js").Label} Label */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. Properties that are functions become listeners; children are nodes or text, never markup.
 * @param {string} name tag, with classes after dots: `"p.hint"`
 */
export function el(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== null && value !== false && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Labels and names come from anywhere: what would not show, or would turn the text around it, becomes a sign that shows. */
export const shown = (text) =>
  String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, "\ufffd");

/** A label as an element of its own, so that right-to-left text stays within it. */
export const name = (label) => el("bdi", { title: String(label).length > 24 ? shown(label) : null }, shown(label));

/** @param {Label} label Labels that differ in type differ. */
export const key = (label) => JSON.stringify(label);

export const percent = (share) => `${Math.round(share * 100)}%`;
const plural = (word) => word + (word.endsWith("s") ? "es" : "s");
export const count = (number, word) => `${number.toLocaleString("en")} ${number === 1 ? word : plural(word)}`;

const shorter = (text) => (text.length > 60 ? `${text.slice(0, 59)}…` : text);

/** “a, b and c”, or “12 classes” if there are many. */
export function list(labels, most = 3) {
  const names = labels.map((label) => shorter(shown(label)));
  if (names.length > most) return count(names.length, "class");
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

export function bytes(number) {
  const unit = number < 1e3 ? 0 : number < 1e6 ? 1 : number < 1e9 ? 2 : 3;
  return `${(number / 1000 ** unit).toFixed(unit ? 1 : 0)} ${["bytes", "kB", "MB", "GB"][unit]}`;
}

export function day(date) {
  if (!date) return "–";
  const when = new Date(`${String(date).slice(0, 10)}T12:00`);
  if (Number.isNaN(when.getTime())) return shown(date);
  if (when.toDateString() === new Date().toDateString()) return "today";
  return when.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}

export const clock = (time) => new Date(time).toLocaleTimeString("en-GB");

/** A thumbnail, or a quiet square for a photo that the browser cannot show. */
export function thumb(source, alt = "") {
  if (source) return el("img.thumb", { src: source, alt, width: 56, height: 56 });
  return el("span.thumb.blank", alt ? { role: "img", "aria-label": alt } : { "aria-hidden": "true" }, "?");
}

/** The likeliest classes with bars. @param {{label: Label, probability: number}[]} top */
export function bars(top) {
  const bar = (share) => {
    const fill = el("span");
    fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
    return el("span.bar", { "aria-hidden": "true" }, fill);
  };
  const line = ({ label, probability }) =>
    el("li", {}, el("span.name", {}, name(label)), " ", el("span.number", {}, percent(probability)), bar(probability));
  return el("ol.bars", {}, top.map(line));
}

/**
 * A matrix of accuracies as a table: the deeper the colour, the higher the number, which every cell shows as well.
 * @typedef {{share: number, hint?: string}|null} Cell
 * @param {{title: string, corner: string, columns: Label[], rows: {title: string, cells: Cell[]}[], none?: string}} matrix
 */
export function matrix({ title, corner, columns, rows, none = "not taught yet" }) {
  const cell = (value) => {
    if (!value) return el("td.none", {}, el("span", { "aria-hidden": "true" }, "·"), el("span.sr", {}, none));
    const td = el("td.heat", { title: value.hint ?? null }, percent(value.share));
    td.style.setProperty("--share", `${value.share * 100}%`);
    return td;
  };
  const heads = columns.map((one) => el("th", { scope: "col" }, name(one)));
  const head = el("tr", {}, el("th", { scope: "col" }, corner), heads);
  const row = (one) => el("tr", {}, el("th", { scope: "row" }, name(one.title)), one.cells.map(cell));
  const table = el("table.matrix", {}, el("caption", {}, title), el("thead", {}, head), el("tbody", {}, rows.map(row)));
  return el("div.scroll", { tabindex: 0, role: "region", "aria-label": title }, table);
}

/** The bytes of the model over time, above a line at zero: a flat line is flat. @param {{title: string, bytes: number}[]} points */
export function sizeLine(points) {
  const most = Math.max(...points.map((point) => point.bytes)) * 1.35;
  const x = (i) => (points.length > 1 ? 4 + (i / (points.length - 1)) * 232 : 120);
  const places = points.map((point, i) => `${x(i).toFixed(1)},${(58 - (point.bytes / most) * 54).toFixed(1)}`);
  const svg = document.createElementNS(SVG, "svg");
  const set = (node, attributes) => Object.entries(attributes).forEach(([attribute, value]) => node.setAttribute(attribute, value));
  const add = (tag, attributes) => set(svg.appendChild(document.createElementNS(SVG, tag)), attributes);
  const words = points.slice(-20).map((point) => `${shown(point.title)}: ${bytes(point.bytes)}`);
  set(svg, { viewBox: "0 0 240 62", role: "img", class: "line", "aria-label": `Bytes of the model. ${words.join("; ")}.` });
  add("line", { x1: 0, y1: 58, x2: 240, y2: 58, class: "axis" });
  add("polyline", { points: places.join(" ") });
  for (const place of places.length > 40 ? [places[0], places.at(-1)] : places) {
    const [cx, cy] = place.split(",");
    add("circle", { cx, cy, r: 3 });
  }
  return svg;
}

/**
 * Ask something in the page: shows a sentence with buttons, takes the focus, and resolves to the number of the button.
 * Escape is the last button, which changes nothing.
 * @param {HTMLElement} place @param {string} text @param {string[]} answers
 */
export function question(place, text, answers) {
  const before = document.activeElement;
  return new Promise((resolve) => {
    const answer = (number) => {
      box.remove();
      if (number === answers.length - 1 && before?.isConnected) before.focus();
      resolve(number);
    };
    const button = (label, i) =>
      el("button", { type: "button", class: i ? "quiet" : "strong", "data-answer": i ? "no" : "yes", click: () => answer(i) }, label);
    const id = `question-${Math.random().toString(36).slice(2)}`;
    const row = el("p.row", {}, answers.map(button));
    const box = el("div.question", { role: "group", "aria-labelledby": id }, el("p", { id }, text), row);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") answer(answers.length - 1);
    });
    place.replaceChildren(box);
    row.firstChild.focus();
  });
}
