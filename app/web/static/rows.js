// The overview: a row for each pipeline, those in trouble first; a filter; and a card below each row that is opened.

import { newCard, reasonOf, showCard } from "./card.js";
import { count, plural, put, rate } from "./text.js";

export const WORST_FIRST = ["failed", "degraded", "restarting", "starting", "stopped", "paused", "running"];
const COLOURED = ["running", "degraded", "failed"];
const MOST_SAID = 3;

const byId = (id) => document.getElementById(id);
const rows = new Map();
const open = new Set(); // names, also those that are not there (yet)
let made = 0;
let sought = false; // the address of the page opens a card, which has not been scrolled to
let changed = () => {};

// `onOpen` is called when the worker has to be asked for what is opened.
export function startRows(onOpen) {
  changed = onOpen;
  for (const each of ["name", "state"]) {
    byId(each).addEventListener("input", () => {
      filter();
      put(byId("said"), byId("matching").textContent);
      writeAddress();
    });
  }
  window.addEventListener("hashchange", readAddress);
  readAddress();
}

export function openOf(names) {
  return names.filter((name) => open.has(name));
}

// A worker with one pipeline shows all of it, unless the address of the page says what is open.
export function openOnly(names) {
  if (names.length === 1 && !open.size) open.add(names[0]);
}

// --- what the worker says ------------------------------------------------------------------------------------------

export function showRows(worker) {
  const { pipelines } = worker;
  // Before the rows: what is not seen has no width for pictures.
  document.querySelector(".list").hidden = pipelines.length === 0;
  document.querySelector(".filter").hidden = pipelines.length < 2;
  const names = new Set(pipelines.map(({ name }) => name));
  for (const [name, row] of rows) if (!names.has(name)) { row.root.remove(); rows.delete(name); }
  say(pipelines.filter(({ name, state }) => rows.has(name) && rows.get(name).pipeline.state !== state));
  for (const pipeline of pipelines) showRow(pipeline, worker);
  arrange();
  filter();
  const found = sought && document.querySelector(".list > tbody:not([hidden]) .card");
  if (!found) return;
  sought = false;
  found.closest("tbody").scrollIntoView({ block: "nearest" });
}

function say(changes) {
  if (!changes.length) return;
  const told = changes.slice(0, MOST_SAID).map((each) => `${each.name}: ${each.state}. ${reasonOf(each) ?? ""}`);
  if (changes.length > MOST_SAID) told.push(`${plural(changes.length - MOST_SAID, "more pipeline")} changed.`);
  put(byId("said"), told.join(" "));
}

function newRow(name) {
  const root = byId("row").content.firstElementChild.cloneNode(true);
  const button = root.querySelector(".open");
  const [, opened] = root.rows;
  opened.id = `pipeline-${made++}`;
  button.setAttribute("aria-controls", opened.id);
  put(button, name);
  button.addEventListener("click", () => {
    sought = false;
    if (!open.delete(name)) open.add(name);
    showOpened(rows.get(name));
    writeAddress();
    if (open.has(name)) changed();
  });
  const row = { root, button, opened, card: null, pipeline: null };
  rows.set(name, row);
  document.querySelector(".list").append(root);
  return row;
}

function showRow(pipeline, worker) {
  const row = rows.get(pipeline.name) ?? newRow(pipeline.name);
  row.pipeline = pipeline;
  const { state, recent } = pipeline;
  const badge = row.root.querySelector(".state");
  badge.className = `state ${COLOURED.includes(state) ? state : "idle"}`;
  put(badge, state);
  const why = row.root.querySelector(".why");
  const reason = reasonOf(pipeline);
  why.hidden = reason === null;
  put(why, reason ?? "");
  const numbers = [rate(recent.records_in), rate(recent.records_out), count(pipeline.lag), count(pipeline.dead_letters)];
  row.root.querySelectorAll(".row .number").forEach((cell, index) => put(cell, numbers[index]));
  showOpened(row, worker);
}

function showOpened(row, worker) {
  const { button, opened, pipeline } = row;
  const isOpen = open.has(pipeline.name);
  button.setAttribute("aria-expanded", isOpen);
  opened.hidden = !isOpen;
  const place = opened.firstElementChild;
  if (!isOpen) {
    row.card = null;
    place.replaceChildren();
  } else if (worker && pipeline.card) {
    if (!row.card) {
      row.card = newCard(pipeline.name, opened.id);
      place.replaceChildren(row.card.root);
    }
    showCard(row.card, pipeline, worker);
  } else if (!row.card) {
    put(place, "Asks the worker …");
  }
}

export function drawRows() {
  for (const { card } of rows.values()) card?.draw();
}

// Trouble is what has a reason: a pipeline that is paused because somebody asked for that has none.
function arrange() {
  const inTrouble = ({ pipeline }) => pipeline.reason !== null;
  const sorted = [...rows.values()].sort((one, other) =>
    inTrouble(other) - inTrouble(one)
    || WORST_FIRST.indexOf(one.pipeline.state) - WORST_FIRST.indexOf(other.pipeline.state)
    || one.pipeline.name.localeCompare(other.pipeline.name, "en", { numeric: true }));
  const list = document.querySelector(".list");
  if (sorted.every(({ root }, index) => list.tBodies[index] === root)) return;
  // A row that is moved loses the focus. So the others are moved around the one that has it.
  const held = sorted.findIndex(({ root }) => root.contains(document.activeElement));
  sorted.forEach(({ root }, index) => {
    if (index < held) sorted[held].root.before(root);
    else if (index !== held) list.append(root);
  });
}

// --- what the user wishes ------------------------------------------------------------------------------------------

function filter() {
  const name = byId("name").value.trim().toLowerCase();
  const state = byId("state").value;
  let matching = 0;
  for (const { root, pipeline } of rows.values()) {
    const fits = state === "trouble" ? pipeline.reason !== null : !state || pipeline.state === state;
    root.hidden = !(fits && pipeline.name.toLowerCase().includes(name));
    matching += !root.hidden;
  }
  put(byId("matching"), name || state ? `${count(matching)} of ${plural(rows.size, "pipeline")}` : "");
}

// What is open and what is filtered stands behind the # of the address, so that a link or a reload has it again.
function writeAddress() {
  const kept = new URLSearchParams();
  for (const each of ["name", "state"]) if (byId(each).value) kept.set(each, byId(each).value);
  for (const name of open) kept.append("open", name);
  window.history.replaceState(null, "", `${location.pathname}${location.search}${`#${kept}`.replace(/^#$/, "")}`);
}

function readAddress() {
  if (location.hash && !location.hash.includes("=")) return; // a part of the page
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const each of ["name", "state"]) byId(each).value = kept.get(each) ?? "";
  if (!byId("state").value) byId("state").value = ""; // a state that there is not
  open.clear();
  for (const name of kept.getAll("open")) open.add(name);
  sought = open.size > 0;
  if (!rows.size) return;
  for (const row of rows.values()) showOpened(row);
  filter();
  changed();
}
