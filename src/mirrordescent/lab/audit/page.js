"use strict";
// The list of samples on an audit's page: filter, sort, decide, export. A sample is known by its index in the data, a
// class by its number. Texts come from the data and are never trusted: they enter the page only as textContent or as
// properties.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const flagged = new Set(data.flagged);
const shown = new Map(data.shown.map(([index, picture, cells]) => [index, { picture, cells }]));

const ACTIONS = ["keep", "drop", "relabel"];
const SIZES = { cards: 48, rows: 100 }; // samples per page; few enough to be drawn at once
const PICTURE = 160; // pixels, as in page.css
const STORED = `mirrordescent-audit-${document.body.dataset.key}`;

const decisions = new Map(); // index → { action, label }; label: the new class, for relabel, else null
const past = []; // for undo: lists of [index, the decision before]
let list = []; // what matches the filters, in order. It stays until they change: no card vanishes when it is decided on.
let page = 0;
let at = -1; // the place in `list` that has the focus, or had it last; -1 if none had
let stored = true; // whether the browser keeps the decisions
let exported = true; // whether all of them are in an exported file

// Texts

const UNSEEN = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

// As in page.py: a character that is invisible, or reverses what follows, becomes an escape.
function visible(text) {
  return text.replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`) || "(empty)";
}

const nameOf = (index) => visible(data.names[index]);
const className = (label) => visible(data.classes[label]);
const percent = (share) => (share >= 0.9995 ? "> 99.9 %" : `${(100 * share).toFixed(1)} %`); // nothing is certain
const number = (count) => count.toLocaleString("en");

// Elements

// `properties` that the element knows are set as properties, others as attributes.
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Text from the data, isolated so that its writing direction does not affect what is around it.
const isolated = (text) => element("bdi", { textContent: text });

const option = (value, text) => element("option", { value, textContent: text, dir: "auto" });

// Filtering and sorting

const collator = new Intl.Collator("en", { numeric: true });
const suspicion = (a, b) => data.wrong[b] - data.wrong[a] || data.score[b] - data.score[a] || a - b;
const ORDERS = {
  wrong: suspicion,
  score: (a, b) => data.score[b] - data.score[a] || a - b,
  confidence: (a, b) => data.confidence[b] - data.confidence[a] || suspicion(a, b),
  name: (a, b) => collator.compare(data.names[a], data.names[b]) || a - b,
  class: (a, b) => data.given[a] - data.given[b] || data.suggested[a] - data.suggested[b] || suspicion(a, b),
};
const sorted = {}; // all samples in each order that was asked for

function inOrder(order) {
  sorted[order] ??= [...data.names.keys()].sort(ORDERS[order]);
  return $("reverse").checked ? [...sorted[order]].reverse() : sorted[order];
}

function fits() {
  const given = $("given").value;
  const suggested = $("suggested").value;
  const text = $("text").value.toLowerCase();
  const cards = view() === "cards";
  return (index) =>
    (!cards || shown.has(index)) &&
    (given === "" || data.given[index] === Number(given)) &&
    (suggested === "" || data.suggested[index] === Number(suggested)) &&
    (!$("flagged").checked || flagged.has(index)) &&
    (!$("undecided").checked || !decisions.has(index)) &&
    (text === "" || holds(index, text));
}

// Whether the text is in a sample's name, or in its row if the page has that.
function holds(index, text) {
  const values = (shown.get(index)?.cells ?? []).map(([, value]) => value);
  return [data.names[index], ...values].some((value) => value.toLowerCase().includes(text));
}

const view = () => document.querySelector("[name=view]:checked").value;

function filter() {
  list = inOrder($("sort").value).filter(fits());
  page = 0;
  at = -1;
  draw();
}

// Drawing

const holder = () => (view() === "cards" ? $("cards") : $("rows").querySelector("tbody"));
const pages = () => Math.max(1, Math.ceil(list.length / SIZES[view()]));

// The elements of the samples on this page; each one's dataset has its place in `list` and its index.
const nodes = () => [...holder().children];

function draw() {
  const drawn = view() === "cards" ? card : row;
  const start = page * SIZES[view()];
  $("cards").hidden = view() !== "cards";
  $("rows").hidden = view() !== "rows";
  $("nothing").hidden = list.length > 0;
  holder().replaceChildren(
    ...list.slice(start, start + SIZES[view()]).map((index, place) => {
      const node = drawn(index);
      Object.assign(node.dataset, { place: start + place, index });
      node.addEventListener("focusin", () => reachable((at = start + place)));
      refresh(node, index);
      return node;
    }),
  );
  reachable(Math.floor(at / SIZES[view()]) === page ? at : start);
  $("page").textContent = `page ${number(page + 1)} of ${number(pages())}`;
  $("before").disabled = page === 0;
  $("after").disabled = page >= pages() - 1;
  count();
}

function spoken(index) {
  const [given, suggested] = [data.given[index], data.suggested[index]].map(className);
  const wrong = percent(data.wrong[index]);
  return `${nameOf(index)}: given ${given}, suggested ${suggested}, wrong with probability ${wrong}`;
}

const figuresOf = (index) => [
  ["wrong", percent(data.wrong[index])],
  ["confidence", percent(data.confidence[index])],
  ["score", data.score[index].toPrecision(3)],
];

function named(tag, index) {
  const name = element(tag, { className: "name" }, isolated(nameOf(index)));
  if (flagged.has(index)) name.append(" ", element("span", { className: "flag", textContent: "flagged" }));
  return name;
}

function card(index) {
  const { picture, cells } = shown.get(index);
  const labels = element("p", { className: "labels" }, isolated(className(data.given[index])));
  if (data.given[index] === data.suggested[index]) labels.append(", and the model agrees");
  else labels.append(" → ", element("strong", {}, isolated(className(data.suggested[index]))));
  const figures = element("dl", { className: "figures" });
  for (const [name, value] of figuresOf(index)) {
    figures.append(element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value })));
  }
  const node = element("li", { className: "card", tabindex: "-1", "aria-label": spoken(index) });
  if (picture) node.append(pictured(picture, index));
  node.append(named("h3", index), labels, figures);
  if (cells.length) node.append(tabled(cells, index));
  node.append(controls(index));
  return node;
}

// A small picture is enlarged by a whole number, so that its pixels stay sharp.
function pictured(picture, index) {
  const image = element("img", { src: picture, alt: `Picture of ${nameOf(index)}` });
  image.addEventListener("load", () => {
    const scale = Math.floor(PICTURE / Math.max(image.naturalWidth, image.naturalHeight));
    if (scale < 2) return;
    image.width = scale * image.naturalWidth;
    image.classList.add("crisp");
  });
  return element("div", { className: "picture" }, image);
}

function tabled(cells, index) {
  const body = element("tbody");
  for (const [column, value] of cells) {
    const head = element("th", { scope: "row" }, isolated(visible(data.columns[column])));
    body.append(element("tr", {}, head, element("td", {}, isolated(value === "" ? "" : visible(value)))));
  }
  const around = { className: "cells", role: "region", tabindex: "0", "aria-label": `Cells of ${nameOf(index)}` };
  return element("div", around, element("table", {}, body));
}

function row(index) {
  return element(
    "tr",
    { tabindex: "-1", "aria-label": spoken(index) },
    named("td", index),
    element("td", {}, isolated(className(data.given[index]))),
    element("td", {}, isolated(className(data.suggested[index]))),
    ...figuresOf(index).map(([, text]) => element("td", { className: "number", textContent: text })),
    element("td", {}, controls(index)),
  );
}

function controls(index) {
  const group = element("div", { className: "decision", role: "group", "aria-label": `Decision on ${nameOf(index)}` });
  for (const action of ACTIONS) {
    const button = element("button", { type: "button", textContent: action, "aria-keyshortcuts": action[0] });
    button.dataset.action = action;
    button.addEventListener("click", () => choose(index, action));
    group.append(button);
  }
  const select = element("select", { "aria-label": `New class of ${nameOf(index)}` });
  // A thousand classes on every card would make the page slow: they are filled in when a person reaches for them.
  for (const reach of ["focus", "pointerdown"]) select.addEventListener(reach, () => fillClasses(select, index));
  select.addEventListener("change", () => {
    if (select.value !== "") decide([[index, { action: "relabel", label: Number(select.value) }]]);
  });
  // The list of classes stands beside the relabel button, the last one.
  group.append(element("span", { className: "relabel" }, group.lastChild, select));
  return group;
}

function fillClasses(select, index) {
  if (select.options.length > 1) return;
  const value = select.value;
  const others = [...data.classes.keys()].filter((label) => label !== data.given[index]);
  select.replaceChildren(...others.map((label) => option(label, className(label))));
  if (value === "") select.prepend(option("", "choose …"));
  select.value = value;
}

// The class that relabel would give a sample; null if none was chosen and the model agrees with the given one.
function newLabel(index) {
  const suggested = data.suggested[index];
  return decisions.get(index)?.label ?? (suggested === data.given[index] ? null : suggested);
}

function refresh(node, index) {
  const action = decisions.get(index)?.action ?? "";
  node.dataset.decided = action;
  for (const button of node.querySelectorAll("[data-action]")) {
    button.setAttribute("aria-pressed", String(button.dataset.action === action));
  }
  const label = newLabel(index);
  const select = node.querySelector("select");
  const choice = label === null ? option("", "choose …") : option(label, className(label));
  if (select.options.length < 2) select.replaceChildren(choice); // else it has all classes already
  select.value = choice.value;
}

function count() {
  const pool = view() === "cards" ? shown.size : data.names.length;
  const kinds = ACTIONS.map((action) => [[...decisions.values()].filter((d) => d.action === action).length, action]);
  const parts = kinds.filter(([many]) => many).map(([many, action]) => `${number(many)} ${action}`).join(", ");
  $("counts").textContent = `${number(list.length)} of ${number(pool)} shown; ${number(decisions.size)} decided`;
  if (parts) $("counts").append(` (${parts})`);
  $("notice").hidden = stored;
  $("undo").disabled = past.length === 0;
  $("export").disabled = decisions.size === 0;
}

// Deciding

// changes: pairs of an index and a decision, undefined to clear it.
function decide(changes) {
  past.push(changes.map(([index]) => [index, decisions.get(index)]));
  apply(changes);
}

function apply(changes) {
  for (const [index, decision] of changes) {
    if (decision) decisions.set(index, decision);
    else decisions.delete(index);
  }
  exported = false;
  save();
  for (const node of nodes()) refresh(node, Number(node.dataset.index));
  count();
}

const undo = () => past.length && apply(past.pop());

// Choosing the same action again clears it.
function choose(index, action) {
  if (decisions.get(index)?.action === action) return decide([[index, undefined]]);
  const label = action === "relabel" ? newLabel(index) : null;
  if (action !== "relabel" || label !== null) return decide([[index, { action, label }]]);
  nodes().find((node) => Number(node.dataset.index) === index)?.querySelector("select").focus();
}

const BULK = {
  relabel: ["Relabel", (many) => `Relabel ${many} as suggested?`],
  drop: ["Drop", (many) => `Drop ${many}?`],
  keep: ["Keep", (many) => `Keep ${many} as given?`],
  clear: ["Clear", (many) => `Clear the decisions on ${many}?`],
};

// Decide on all samples that match the filters, on every page; decisions made before stay as they are.
async function decideAll(action) {
  const open = list.filter((index) => decisions.has(index) === (action === "clear"));
  const chosen = action === "relabel" ? open.filter((index) => newLabel(index) !== null) : open;
  const many = `${number(chosen.length)} ${chosen.length === 1 ? "sample" : "samples"}`;
  const agreed = open.length - chosen.length;
  const left = agreed ? ` The model agrees with the labels of ${number(agreed)} more, which stay undecided.` : "";
  const [verb, question] = BULK[action];
  if (chosen.length === 0) return ask(`There is nothing to do among the samples shown.${left}`);
  if (!(await ask(`${question(many)}${left} Undo takes it back.`, verb))) return undefined;
  const decision = (index) => ({ action, label: action === "relabel" ? newLabel(index) : null });
  return decide(chosen.map((index) => [index, action === "clear" ? undefined : decision(index)]));
}

// Whether the person says yes; without a word for yes, the dialog only informs.
function ask(question, yes = "") {
  const dialog = $("confirm");
  $("question").textContent = question;
  $("yes").textContent = yes;
  $("yes").hidden = !yes;
  $("no").textContent = yes ? "Cancel" : "OK";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// Keeping

// A browser may refuse to store anything for a page opened from a file, or have no room left.
function save() {
  try {
    const held = [...decisions].map(([index, { action, label }]) => [index, action, label]);
    localStorage.setItem(STORED, JSON.stringify(held));
    stored = true;
  } catch {
    stored = false;
  }
}

function restore() {
  try {
    for (const [index, action, label] of JSON.parse(localStorage.getItem(STORED)) ?? []) {
      const known = action === "relabel" ? label in data.classes : label === null;
      if (index in data.names && ACTIONS.includes(action) && known) decisions.set(index, { action, label });
    }
  } catch {
    stored = false;
  }
}

// Exporting

// A spreadsheet takes a cell that begins like this for a formula; an apostrophe before it makes it text. decisions.py
// takes one apostrophe off again, so one also goes before an apostrophe.
const guarded = (text) => (/^['=+\-@＝＋－＠\t\r\n]/.test(text) ? `'${text}` : text);
const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function table() {
  const known = data.fingerprints.length > 0; // of a table, whose rows may be moved before the file is read
  const lines = [["index", "name", "given_label", "action", "label", ...(known ? ["fingerprint"] : [])]];
  for (const index of [...decisions.keys()].sort((a, b) => a - b)) {
    const { action, label } = decisions.get(index);
    const given = data.classes[data.given[index]];
    const line = [String(index), data.names[index], given, action, label === null ? "" : data.classes[label]];
    lines.push(known ? [...line, data.fingerprints[index]] : line);
  }
  const text = lines.map((cells) => cells.map((cell) => quoted(guarded(cell))).join(",") + "\r\n").join("");
  // Spreadsheets recognise UTF-8 by this mark; a file that is ASCII does not need it.
  return /[^\x00-\x7f]/.test(text) ? `\ufeff${text}` : text;
}

function download() {
  const address = URL.createObjectURL(new Blob([table()], { type: "text/csv;charset=utf-8" }));
  element("a", { href: address, download: "decisions.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // some browsers read it only after a while
  exported = true;
}

// Moving

// The Tab key stops at one sample of the page only; the arrows move on from there.
function reachable(place) {
  for (const node of nodes()) node.tabIndex = Number(node.dataset.place) === place ? 0 : -1;
}

function go(place) {
  if (list.length === 0) return;
  at = Math.min(Math.max(place, 0), list.length - 1);
  if (Math.floor(at / SIZES[view()]) !== page) turn(Math.floor(at / SIZES[view()]));
  nodes()[at % SIZES[view()]].focus();
}

function turn(to) {
  page = Math.min(Math.max(to, 0), pages() - 1);
  draw();
}

// How many samples stand side by side.
function across() {
  const all = nodes();
  const below = all.findIndex((node) => node.offsetTop > all[0].offsetTop);
  return below < 0 ? all.length : below;
}

const step = (key) =>
  ({ n: 1, p: -1, ArrowRight: 1, ArrowLeft: -1, ArrowDown: across(), ArrowUp: -across() })[key];
const KEYS = { k: "keep", d: "drop", r: "relabel" };

function press(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || $("confirm").open) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const item = event.target.closest?.("[data-place]");
  const field = event.target.closest?.("select, [type=search]");
  if (key === "Escape" && (item || field)) go(at < 0 ? page * SIZES[view()] : at);
  else if (key === "/" && field?.type !== "search") $("text").focus();
  else if (field) return; // the field uses the key itself
  else if (key === "u") undo();
  // Without a sample in focus, arrows scroll; so they do inside a sample's own table.
  else if (step(key) && (key.length === 1 || (item && !event.target.closest(".cells")))) {
    go(item || at >= 0 ? at + step(key) : page * SIZES[view()]);
  } else if (key in KEYS && item) choose(Number(item.dataset.index), KEYS[key]);
  else return;
  event.preventDefault();
}

// Starting

function fillFilter(id, labels) {
  const counts = new Array(data.classes.length).fill(0);
  for (const label of labels) counts[label] += 1;
  $(id).append(...data.classes.map((_, label) => option(label, `${className(label)} (${number(counts[label])})`)));
}

function listen() {
  $("filters").addEventListener("input", filter);
  $("before").addEventListener("click", () => turn(page - 1));
  $("after").addEventListener("click", () => turn(page + 1));
  $("undo").addEventListener("click", undo);
  $("export").addEventListener("click", download);
  for (const answer of ["yes", "no"]) $(answer).addEventListener("click", () => $("confirm").close(answer));
  for (const button of document.querySelectorAll("[data-bulk]")) {
    button.addEventListener("click", () => decideAll(button.dataset.bulk));
  }
  document.addEventListener("keydown", press);
  window.addEventListener("beforeunload", (event) => {
    if (!stored && !exported) event.preventDefault();
  });
}

function start() {
  $("cards-label").textContent = `the ${number(shown.size)} most suspicious`;
  $("rows-label").textContent = `all ${number(data.names.length)}, as a list`;
  if (shown.size === 0) document.querySelector("[name=view][value=rows]").click();
  fillFilter("given", data.given);
  fillFilter("suggested", data.suggested);
  restore();
  listen();
  filter();
}

start();
