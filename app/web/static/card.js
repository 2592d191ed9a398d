// The card of a pipeline that is opened: the way of its data, its numbers, lines over time, its partitions.

import { drawLines, drawWay } from "./draw.js";
import { RATES, samples } from "./samples.js";
import { UNKNOWN, bytes, count, duration, percent, plural, put, rate, seconds } from "./text.js";

const LEAST_SPAN_S = 60;
const CALLS = { publish: ["publish", "publishes"], download: ["download", "downloads"] };

export function newCard(name, id) {
  const root = document.getElementById("card").content.firstElementChild.cloneNode(true);
  const parts = Object.fromEntries([...root.querySelectorAll("[data-is]")].map((each) => [each.dataset.is, each]));
  const title = root.querySelector("h2");
  title.id = `${id}-title`;
  root.setAttribute("aria-labelledby", title.id);
  put(title, name);
  root.querySelector(".meter").setAttribute("aria-label", `${name}: part of the byte budget`);
  root.querySelector(".scroll").setAttribute("aria-label", `${name}: lag by partition`);
  return { root, parts, rows: "", draw: () => {} };
}

// `row`: the pipeline in the overview; `worker`: the overview.
export function showCard(card, row, worker) {
  const { root, parts } = card;
  const pipeline = { ...row, ...row.card };
  const { state, recent } = pipeline;
  const reason = reasonOf(pipeline);
  put(parts.group, `group ${pipeline.group_id} · ${pipeline.processing_guarantee.replaceAll("_", " ")}`);
  parts.reason.hidden = reason === null;
  parts.reason.className = `notice ${state}`;
  put(parts.reason, reason ?? "");
  showTiles(card, pipeline, worker);
  for (const name of RATES) put(parts[name.replace("_", "-")], name.startsWith("bytes") ? bytes(recent[name]) : rate(recent[name]));
  showPartitions(card, pipeline);
  put(parts.totals, totals(pipeline));
  card.draw = () => {
    const way = root.querySelector(".way");
    drawWay(way, wayOf(pipeline), way.clientWidth);
    for (const what of ["records", "bytes"]) drawLines(parts[what], lines(what, pipeline.name, worker), parts[what].clientWidth);
  };
  card.draw();
}

// Why a pipeline is not well, if that says more than its state.
export function reasonOf({ reason, state }) {
  return reason === state ? null : reason;
}

function lines(what, name, { running_s: runningS }) {
  const whole = samples.kept * samples.everyS;
  const rates = samples.rates.get(name);
  return {
    name: what === "bytes" ? "Bytes per second" : "Records per second",
    times: samples.times.map((at) => Math.max(0, runningS - at)),
    input: rates[`${what}_in`],
    output: rates[`${what}_out`],
    spans: Math.min(whole, Math.max(LEAST_SPAN_S, Math.ceil(runningS / 60) * 60)),
    isBytes: what === "bytes",
  };
}

function showTiles({ root, parts }, pipeline, { limit_bytes: limit }) {
  put(parts.lag, count(pipeline.lag));
  const paused = pipeline.partitions_paused ? `, ${count(pipeline.partitions_paused)} not read` : "";
  put(parts["lag-more"], `records, in ${plural(pipeline.partitions_assigned, "partition")}${paused}`);
  const part = limit ? (100 * pipeline.in_flight_bytes) / limit : 0;
  const ahead = pipeline.read_ahead_bytes ? `; ${bytes(pipeline.read_ahead_bytes)} read ahead` : "";
  put(parts.flight, bytes(pipeline.in_flight_bytes));
  put(parts["flight-more"], `${percent(part)} of ${bytes(limit)}${ahead}`);
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

function wayOf(pipeline) {
  const [first, ...others] = pipeline.topics;
  const source = others.length ? `${first} +${others.length}` : first;
  const chain = pipeline.transforms.join(" → ");
  const { recent } = pipeline;
  const looks = { failed: "bad", degraded: "doubtful" };
  const way = {
    source: { kind: others.length ? `${pipeline.topics.length} sources` : "source", name: source, title: pipeline.topics.join(", ") },
    worker: { kind: "worker", name: chain || "as they are", look: looks[pipeline.state] },
    sink: { kind: "output topic", name: pipeline.output_topic },
    input: { records: recent.records_in, bytes: recent.bytes_in },
    output: { records: recent.records_out, bytes: recent.bytes_out },
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
