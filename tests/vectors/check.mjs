// node check.mjs VECTORS FOLDER: holds docs/examples/reader.mjs to the vectors; prints what was read and what was not.
import fs from "node:fs";
import path from "node:path";
import { isDeepStrictEqual } from "node:util";
import { codecs, read } from "../../docs/examples/reader.mjs";

const [vectors, scratch] = process.argv.slice(2);
const { defaults, cases } = JSON.parse(fs.readFileSync(vectors, "utf8"));
const bytes = (it) =>
  it === null ? null
  : typeof it === "string" ? Buffer.from(it)
  : "times" in it ? Buffer.from(it.text.repeat(it.times))
  : Buffer.from(it.base64, "base64");
const record = (it) => ({
  key: bytes(it.key), value: bytes(it.value), headers: it.headers.map(([name, value]) => [name, bytes(value)]),
});

const summary = { read: 0, skipped: [], failed: [] };
cases.forEach((each, i) => {
  const { name, part, root, max_bytes: maxBytes, keys, wire, plain, payload, error } = { ...defaults, ...each };
  const given = record(wire === "plain" ? plain : wire);
  const needs = given.headers.map(([, value]) => value?.toString()).find((it) => ["snappy", "lz4", "zstd"].includes(it));
  if (needs && !codecs[needs]) return summary.skipped.push(name);
  const folder = path.join(scratch, String(i));
  if (payload) {
    const file = path.join(folder, payload.path.slice(root.length));
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, bytes(payload.bytes));
  }
  let found;
  try {
    const flag = part === "key" ? "large-message-key" : "large-message";
    const { data, headers } = read(given[part], given.headers, { root, folder, maxBytes, keys }, flag);
    found = { ...given, [part]: data, headers };
  } catch (exc) {
    found = exc.name;
  }
  if (isDeepStrictEqual(found, error ?? record(plain))) summary.read++;
  else summary.failed.push(name);
});
console.log(JSON.stringify(summary));
