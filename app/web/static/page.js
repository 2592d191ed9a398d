// Asks the worker every two seconds, and shows what it says. Names and reasons may be anybody's: they are text, never markup.

import { drawLines, drawWay } from "./draw.js";
import { UNKNOWN, bytes, count, duration, percent, plural, rate, seconds } from "./text.js";

const EVERY_MS = 2000;
const PATIENCE_MS = 5000;
const LEAST_SPAN_S = 60;
const AVERAGED = 5; // samples: ten seconds
const RATES = ["records_in", "records_out", "bytes_in", "bytes_out"];
const WORST_FIRST = ["failed", "stopped", "paused", "restarting", "starting", "degraded", "running"];
const COLOURED = ["running", "degraded", "failed"];
const CALLS = { publish: ["publish", "publishes"], download: ["download", "downloads"] };

const byId = (id) => document.getElementById(id);
const cards = new Map();
const history = { run: null, last: 0, kept: 0, everyS: 0, times: [], rates: [] };
let shown = null;
let following = true;
let awaySince = null;
let asking = false;
let timer = null;

function put(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

// --- the worker's answers ------------------------------------------------------------------------------------------

async function ask() {
  clearTimeout(timer);
  if (asking || !following) return;
  asking = true;
  try {
    if (!document.hidden) await look();
  } finally {
    asking = false;
    timer = setTimeout(ask, EVERY_MS);
  }
}

async function look() {
  try {
    const answer = await fetch(`overview?after=${history.last}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`it answers with status ${answer.status}`);
    const found = await answer.json();
    if (history.run !== null && history.run !== found.run && history.last > 0) {
      forget(found.run); // another process: its samples begin again
      return await look();
    }
    remember(found);
    shown = found;
  } catch (problem) {
    away(problem);
    return;
  }
  back();
  show();
}

function forget(run) {
  Object.assign(history, { run, last: 0, times: [], rates: [] });
}

function remember({ run, samples, pipelines }) {
  Object.assign(history, { run, last: samples.last, kept: samples.kept, everyS: samples.every_s });
  history.times = [...history.times, ...samples.at_s].slice(-samples.kept);
  history.rates = pipelines.map(({ rates }, index) => Object.fromEntries(RATES.map((name) =>
    [name, [...(history.rates[index]?.[name] ?? []), ...rates[name]].slice(-samples.kept)])));
}

function away(problem) {
  if (awaySince !== null) return;
  awaySince = new Date();
  const since = awaySince.toLocaleTimeString("en-GB");
  const why = problem.message.startsWith("it answers") ? ` (${problem.message})` : "";
  put(byId("away"), `The worker has not answered since ${since}${why}. ${shown ? "What stands below is from before. " : ""}This page goes on asking.`);
  byId("away").hidden = false;
  document.body.classList.add("stale");
  document.title = "No answer – Wideload";
}

function back() {
  if (awaySince !== null) put(byId("said"), "The worker answers again.");
  awaySince = null;
  byId("away").hidden = true;
  document.body.classList.remove("stale");
}

// --- the page ------------------------------------------------------------------------------------------------------

function show() {
  const { version, running_s: runningS, in_flight_bytes: inFlight, limit_bytes: limit, pipelines } = shown;
  put(byId("version"), version);
  const numberOf = (state) => pipelines.filter((each) => each.state === state).length;
  const told = WORST_FIRST.filter(numberOf).map((state) => `${numberOf(state)} ${state}`);
  put(byId("summary"), `${plural(pipelines.length, "pipeline")}: ${told.join(", ")} · ${bytes(inFlight)} of ${bytes(limit)} in flight · up ${duration(runningS)}`);
  put(byId("updated"), `Updated ${new Date().toLocaleTimeString("en-GB")}`);
  const bad = told.filter((each) => !each.endsWith(" running"));
  document.title = bad.length ? `${bad.join(", ")} – Wideload` : "Wideload";
  const names = new Set(pipelines.map(({ name }) => name));
  for (const [name, card] of cards) if (!names.has(name)) { card.root.remove(); cards.delete(name); }
  pipelines.forEach((pipeline, index) => showCard(pipeline, index));
}

function newCard(name) {
  const root = byId("card").content.firstElementChild.cloneNode(true);
  const parts = Object.fromEntries([...root.querySelectorAll("[data-is]")].map((each) => [each.dataset.is, each]));
  const title = root.querySelector("h2");
  title.id = `pipeline-${cards.size}`;
  root.setAttribute("aria-labelledby", title.id);
  put(title, name);
  root.querySelector(".meter").setAttribute("aria-label", `${name}: part of the byte budget`);
  root.querySelector(".scroll").setAttribute("aria-label", `${name}: lag by partition`);
  byId("pipelines").append(root);
  const card = { root, parts, state: null, rows: "" };
  cards.set(name, card);
  return card;
}

function showCard(pipeline, index) {
  const card = cards.get(pipeline.name) ?? newCard(pipeline.name);
  const { root, parts } = card;
  const { state } = pipeline;
  const reason = pipeline.reason !== null && pipeline.reason !== state ? pipeline.reason : null;
  const badge = root.querySelector(".state");
  badge.className = `state ${COLOURED.includes(state) ? state : "idle"}`;
  put(badge, state);
  put(parts.group, `group ${pipeline.group_id} · ${pipeline.processing_guarantee.replaceAll("_", " ")}`);
  parts.reason.hidden = reason === null;
  parts.reason.className = `notice ${state}`;
  put(parts.reason, reason ?? "");
  if (card.state !== null && card.state !== state) put(byId("said"), `${pipeline.name}: ${state}. ${reason ?? ""}`);
  card.state = state;
  const now = Object.fromEntries(RATES.map((name) => [name, average(history.rates[index][name])]));
  showTiles(card, pipeline);
  for (const name of RATES) put(parts[name.replace("_", "-")], name.startsWith("bytes") ? bytes(now[name]) : rate(now[name]));
  showPartitions(card, pipeline);
  put(parts.totals, totals(pipeline));
  card.draw = () => {
    drawWay(root.querySelector(".way"), wayOf(pipeline, now), root.querySelector(".way").clientWidth);
    for (const what of ["records", "bytes"]) {
      drawLines(parts[what], lines(what, index), parts[what].clientWidth);
    }
  };
  card.draw();
}

function average(values) {
  const latest = values.slice(-AVERAGED);
  return latest.length ? latest.reduce((sum, each) => sum + each, 0) / latest.length : null;
}

function lines(what, index) {
  const whole = history.kept * history.everyS;
  const rates = history.rates[index];
  return {
    name: what === "bytes" ? "Bytes per second" : "Records per second",
    times: history.times.map((at) => Math.max(0, shown.running_s - at)),
    input: rates[`${what}_in`],
    output: rates[`${what}_out`],
    spans: Math.min(whole, Math.max(LEAST_SPAN_S, Math.ceil(shown.running_s / 60) * 60)),
    isBytes: what === "bytes",
  };
}

function showTiles({ root, parts }, pipeline) {
  put(parts.lag, count(pipeline.lag));
  const paused = pipeline.partitions_paused ? `, ${count(pipeline.partitions_paused)} not read` : "";
  put(parts["lag-more"], `records, in ${plural(pipeline.partitions_assigned, "partition")}${paused}`);
  const part = shown.limit_bytes ? (100 * pipeline.in_flight_bytes) / shown.limit_bytes : 0;
  const ahead = pipeline.read_ahead_bytes ? `; ${bytes(pipeline.read_ahead_bytes)} read ahead` : "";
  put(parts.flight, bytes(pipeline.in_flight_bytes));
  put(parts["flight-more"], `${percent(part)} of ${bytes(shown.limit_bytes)}${ahead}`);
  const meter = root.querySelector(".meter");
  meter.setAttribute("aria-valuenow", part.toFixed(0));
  meter.classList.toggle("full", part > 85);
  meter.firstElementChild.style.width = `${Math.min(100, part)}%`;
  showStore(parts, pipeline);
  put(parts.dead, count(pipeline.dead_letters));
  put(parts["dead-more"], pipeline.dead_letter_topic === null ? "no topic: a bad record stops the pipeline" : `to ${pipeline.dead_letter_topic}`);
  put(parts.chunks, pipeline.pending_chunked_messages ? plural(pipeline.pending_chunked_messages, "message") : "0");
  put(parts["chunks-more"], pipeline.pending_chunked_messages ? bytes(pipeline.pending_chunked_bytes) : "no message waits");
}

function operations({ store_calls: calls }) {
  return Object.entries(calls).filter(([, each]) => each.calls > 0 || each.errors > 0);
}

function showStore(parts, pipeline) {
  const used = operations(pipeline);
  put(parts.store, used.map(([, each]) => seconds(each.mean_s)).join(" · ") || UNKNOWN);
  const told = used.map(([name, each]) => {
    const slow = each.p95_s === null ? "" : `; ${percent(95)} within ${seconds(each.p95_s)}`;
    return `mean of ${plural(each.calls, ...CALLS[name])}${slow}${each.errors ? `; ${plural(each.errors, "error")}` : ""}`;
  });
  const none = pipeline.store === null ? "this pipeline has no store" : "no call";
  put(parts["store-more"], told.join(". ") || none);
}

function showPartitions(card, { partitions, partitions_assigned: assigned }) {
  const body = card.root.querySelector("tbody");
  const key = JSON.stringify(partitions.map(({ topic, partition }) => [topic, partition]));
  if (card.rows !== key) {
    body.replaceChildren(...partitions.map(newRow));
    card.rows = key;
  }
  partitions.forEach((each, index) => {
    const [name, lag, committed, end] = body.rows[index].cells;
    const [topic, partition] = name.children;
    put(topic, each.topic);
    topic.title = each.topic;
    put(partition, ` ${each.partition}${each.paused ? " (not read)" : ""}`);
    put(lag, count(each.lag));
    lag.classList.toggle("behind", each.lag > 0);
    put(committed, count(each.committed));
    put(end, count(each.end));
  });
  const scroll = card.root.querySelector(".scroll");
  scroll.hidden = partitions.length === 0;
  if (scroll.scrollHeight > scroll.clientHeight || scroll.scrollWidth > scroll.clientWidth) {
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
  } else {
    scroll.removeAttribute("tabindex");
    scroll.removeAttribute("role");
  }
  const rest = assigned - partitions.length;
  put(card.parts["partitions-more"], rest > 0 ? `The ${count(partitions.length)} with the greatest lag; Counters has all ${count(assigned)}.`
    : partitions.length ? "" : "This worker has no partition of this group.");
}

function newRow() {
  const row = document.createElement("tr");
  const name = document.createElement("th");
  name.scope = "row";
  name.append(Object.assign(document.createElement("span"), { className: "topic" }), document.createElement("span"));
  row.append(name);
  for (let cell = 0; cell < 3; cell += 1) {
    row.append(Object.assign(document.createElement("td"), { className: "number" }));
  }
  return row;
}

function totals(pipeline) {
  const told = [`Since the start: ${plural(pipeline.records_in, "record")} in, ${count(pipeline.records_out)} out, ${plural(pipeline.restarts, "restart")}.`];
  if (pipeline.last_error !== null && pipeline.last_error_at !== null && pipeline.reason === null) {
    told.push(`Last error, ${new Date(pipeline.last_error_at).toLocaleString("en-GB")}: ${pipeline.last_error}`);
  }
  return told.join(" ");
}

function wayOf(pipeline, now) {
  const [first, ...others] = pipeline.topics;
  const source = others.length ? `${first} +${others.length}` : first;
  const chain = pipeline.transforms.join(" → ");
  const looks = { failed: "bad", degraded: "doubtful" };
  const way = {
    source: { kind: others.length ? `${pipeline.topics.length} sources` : "source", name: source, title: pipeline.topics.join(", ") },
    worker: { kind: "worker", name: chain || "as they are", look: looks[pipeline.state] },
    sink: { kind: "sink", name: pipeline.output_topic },
    input: { records: now.records_in, bytes: now.bytes_in },
    output: { records: now.records_out, bytes: now.bytes_out },
  };
  const words = [`From ${pipeline.topics.join(", ")} through ${chain} to ${pipeline.output_topic}.`];
  if (pipeline.store !== null) {
    const used = operations(pipeline);
    const errors = used.reduce((sum, [, each]) => sum + each.errors, 0);
    const calls = used.reduce((sum, [, each]) => sum + each.calls, 0);
    const perMinute = used.map(([name, each]) => `${plural(each.calls, ...CALLS[name])}/min`).join(", ") || "no call";
    way.store = {
      kind: errors ? `store · ${plural(errors, "error")}/min` : "store",
      name: pipeline.store.split(".").at(-1),
      title: pipeline.store,
      look: errors ? "bad" : "",
      up: !pipeline.transforms.includes("offload"),
      calls,
      text: perMinute,
    };
    words.push(`Store: ${pipeline.store}, ${perMinute}, ${plural(errors, "error")}.`);
  }
  if (pipeline.dead_letter_topic !== null) {
    way.dead = { kind: `dead letters · ${count(pipeline.dead_letters)}`, name: pipeline.dead_letter_topic, look: pipeline.dead_letters ? "doubtful" : "" };
    words.push(`Dead letters to ${pipeline.dead_letter_topic}: ${count(pipeline.dead_letters)}.`);
  }
  return { ...way, words: words.join(" ") };
}

// --- the browser ---------------------------------------------------------------------------------------------------

byId("follow").addEventListener("click", () => {
  following = !following;
  put(byId("follow"), following ? "Pause updates" : "Resume updates");
  if (following) ask();
  else put(byId("updated"), `Paused at ${new Date().toLocaleTimeString("en-GB")}`);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
new ResizeObserver(() => { for (const card of cards.values()) card.draw(); }).observe(byId("pipelines"));
ask();
