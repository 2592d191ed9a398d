// Asks the worker every two seconds, and shows what it says. Names and reasons may be anybody's: they are text, never markup.

import { WORST_FIRST, drawRows, openOf, openOnly, showRows, startRows } from "./rows.js";
import { askAfter, forgetSamples, keepSamples } from "./samples.js";
import { bytes, duration, plural, put } from "./text.js";

const EVERY_MS = 2000;
const PATIENCE_MS = 5000;

const byId = (id) => document.getElementById(id);
let run = null; // of the process that has answered
let names = []; // of its pipelines, in its order
let shown = false;
let following = true;
let awaySince = null;
let asking = false;
let again = false;
let timer = null;

// --- the worker's answers ------------------------------------------------------------------------------------------

async function ask() {
  clearTimeout(timer);
  again = asking;
  if (asking) return;
  asking = true;
  try {
    do {
      again = false;
      await look();
    } while (again);
  } finally {
    asking = false;
    if (following) timer = setTimeout(() => { if (!document.hidden) ask(); }, EVERY_MS);
  }
}

async function look() {
  let found;
  try {
    found = await answer();
    if (found.run !== run) {
      // Another process: its samples begin again, and its pipelines may be others.
      ({ run } = found);
      names = found.pipelines.map(({ name }) => name);
      forgetSamples();
      openOnly(names);
      if (openOf(names).length) found = await answer();
    }
  } catch (problem) {
    away(problem);
    return;
  }
  back();
  show(found);
}

async function answer() {
  const opened = openOf(names);
  const after = askAfter(opened);
  const positions = opened.map((name) => names.indexOf(name)).join(",");
  const response = await fetch(`overview?after=${after}&open=${positions}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!response.ok) throw new Error(`it answers with status ${response.status}`);
  const found = await response.json();
  if (found.run === run) keepSamples(found, after);
  else for (const each of found.pipelines) delete each.card; // asked for by positions of another process
  return found;
}

function away(problem) {
  document.body.classList.remove("waiting");
  if (awaySince !== null) return;
  awaySince = new Date();
  const since = awaySince.toLocaleTimeString("en-GB");
  const why = problem.message.startsWith("it answers") ? ` (${problem.message})` : "";
  put(byId("away"), `The worker has not answered since ${since}${why}. ${shown ? "The data below is from before. " : ""}This page keeps trying.`);
  byId("away").hidden = false;
  document.body.classList.add("stale");
  document.title = "No answer – Wideload";
}

function back() {
  if (awaySince !== null) put(byId("said"), "The worker answers again.");
  awaySince = null;
  byId("away").hidden = true;
  document.body.classList.remove("stale", "waiting");
}

function show(worker) {
  shown = true;
  const { pipelines } = worker;
  put(byId("version"), worker.version);
  const numberOf = (state) => pipelines.filter((each) => each.state === state).length;
  const told = WORST_FIRST.filter(numberOf).map((state) => `${numberOf(state)} ${state}`);
  put(byId("summary"), `${plural(pipelines.length, "pipeline")}: ${told.join(", ")} · ${bytes(worker.in_flight_bytes)} of ${bytes(worker.limit_bytes)} in flight · up ${duration(worker.running_s)}`);
  showTime();
  const bad = told.filter((each) => !each.endsWith(" running"));
  document.title = bad.length ? `${bad.join(", ")} – Wideload` : "Wideload";
  showRows(worker);
}

function showTime() {
  put(byId("updated"), `${following ? "Updated" : "Paused at"} ${new Date().toLocaleTimeString("en-GB")}`);
}

// --- the browser ---------------------------------------------------------------------------------------------------

byId("follow").addEventListener("click", () => {
  following = !following;
  clearTimeout(timer);
  put(byId("follow"), following ? "Pause updates" : "Resume updates");
  showTime();
  if (following) ask();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && following) ask(); });
new ResizeObserver(drawRows).observe(byId("pipelines"));
startRows(ask);
ask();
